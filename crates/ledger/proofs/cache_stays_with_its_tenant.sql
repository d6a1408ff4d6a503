-- Claim: no task ever had, or made, a cached base of another tenant
-- A row means: dependencies crossed from one tenant to another
SELECT s.run_id, t.org_id AS tenant_id, t.task_key, t.entry_id, r.tenant_id AS runs_tenant
  FROM (SELECT u.task_key, u.entry_id, i.org_id
          FROM app.dependency_cache_uses u
          LEFT JOIN app.dependency_cache_index i ON i.entry_id = u.entry_id
         UNION ALL
        SELECT i.created_by, i.entry_id, i.org_id
          FROM app.dependency_cache_index i) t
  LEFT JOIN app.sbx_runs s ON s.task_key = t.task_key
  LEFT JOIN app.runs r ON r.id = s.run_id
 WHERE t.org_id IS DISTINCT FROM r.tenant_id;
