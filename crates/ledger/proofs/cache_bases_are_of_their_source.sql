-- Claim: every cached base is kept under the source of the task that made it, and used by tasks of that source alone
-- A row means: dependencies crossed from one repository to another, or a base of an older identity can still be used
SELECT s.run_id, i.org_id AS tenant_id, t.task_key, t.entry_id, i.repo_id, coalesce(s.request ->> 'cacheSource', app.cache_source(s.request)) AS source
  FROM (SELECT u.task_key, u.entry_id FROM app.dependency_cache_uses u
         UNION ALL
        SELECT c.created_by, c.entry_id FROM app.dependency_cache_index c) t
  JOIN app.dependency_cache_index i ON i.entry_id = t.entry_id
  LEFT JOIN app.sbx_runs s ON s.task_key = t.task_key
 WHERE CASE i.identity
       WHEN 1 THEN i.state = 'ready'
       ELSE i.repo_id IS DISTINCT FROM coalesce(s.request ->> 'cacheSource', app.cache_source(s.request)) END;
