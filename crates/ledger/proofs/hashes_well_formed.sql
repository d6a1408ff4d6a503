-- Claim: every hash is 64 hex digits
-- A row means: an artifact or a reply has a hash that is none
SELECT run_id, 'artifact' AS what, uri AS id, sha256 AS hash
  FROM app.artifacts
 WHERE sha256 !~ '^[a-f0-9]{64}$'
 UNION ALL
SELECT run_id, 'interaction', workflow_id || ' ' || gate_key || ' ' || dedupe_key, payload_hash
  FROM app.human_interactions
 WHERE payload_hash !~ '^[a-f0-9]{64}$';
