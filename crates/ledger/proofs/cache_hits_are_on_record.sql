-- Claim: every result from a cached base names a base of its own tenant, and that use is on record
-- A row means: a task ran on dependencies off the record, or on others than it says
SELECT s.run_id, s.task_key, r.tenant_id, s.response -> 'cache' AS said
  FROM app.sbx_runs s
  JOIN app.runs r ON r.id = s.run_id
 WHERE s.response #>> '{cache,outcome}' = 'hit'
   AND NOT EXISTS (
       SELECT 1 FROM app.dependency_cache_uses u
         JOIN app.dependency_cache_index i ON i.entry_id = u.entry_id
        WHERE u.task_key = s.task_key
          AND i.org_id = r.tenant_id
          AND i.key = s.response #>> '{cache,key}'
          AND i.digest = s.response #>> '{cache,digest}'
          AND s.response #>> '{cache,org}' = r.tenant_id);
