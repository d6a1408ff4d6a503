-- Claim: a cached base stands once on its host, under the key of its tenant, repository and lock
-- A row means: a base has two rows, or a key that is not its tenant's
SELECT s.run_id, i.org_id AS tenant_id, i.key, i.host_id, n.rows
  FROM app.dependency_cache_index i
  LEFT JOIN app.sbx_runs s ON s.task_key = i.created_by
 CROSS JOIN LATERAL (
       SELECT count(*) AS rows FROM app.dependency_cache_index o
        WHERE o.host_id = i.host_id AND o.state_dir = i.state_dir AND o.key = i.key
          AND o.state <> 'evicted') n
 WHERE (i.state <> 'evicted' AND n.rows > 1)
    OR i.key <> encode(sha256(convert_to(
         i.org_id || E'\n' || i.repo_id || E'\n' || i.lock_hash, 'UTF8')), 'hex');
