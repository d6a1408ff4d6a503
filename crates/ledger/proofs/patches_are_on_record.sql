-- Claim: every change of a build is on record: what was there, what is there, their digest, as its patch says
-- A row means: a change is missing, added or altered against the patch that was built and tested
WITH digests AS (
  SELECT h.*, encode(sha256(convert_to(
           format('[%s,%s,%s]', to_json(h.path),
             CASE WHEN h.pre_mode IS NULL THEN 'null'
                  ELSE format('[%s,%s]', h.pre_mode, coalesce(to_json(h.pre_sha256)::text, 'null')) END,
             CASE WHEN h.post_mode IS NULL THEN 'null'
                  ELSE format('[%s,%s]', h.post_mode, coalesce(to_json(h.post_sha256)::text, 'null')) END),
           'UTF8')), 'hex') AS diff
    FROM app.patch_history h),
patches AS (
  SELECT DISTINCT run_id, task_key, patch_sha256 FROM app.patch_history),
-- Bytes with another hash hold no entries: then every row is one too many.
entries AS (
  SELECT p.run_id, p.patch_sha256, e.n, e.entry ->> 'path' AS path, s.pre, s.post, s.pre_bytes, s.post_bytes
    FROM patches p
    JOIN app.artifacts a ON a.run_id = p.run_id AND a.task_key = p.task_key AND a.kind = 'patch' AND a.sha256 = p.patch_sha256
    LEFT JOIN app.blobs b ON b.sha256 = a.sha256 AND a.inline IS NULL
   CROSS JOIN LATERAL (SELECT coalesce(convert_to(a.inline, 'UTF8'), b.bytes) AS bytes) stored
   CROSS JOIN LATERAL jsonb_array_elements(
         CASE WHEN encode(sha256(stored.bytes), 'hex') = p.patch_sha256
              THEN convert_from(stored.bytes, 'UTF8')::jsonb -> 'entries' ELSE '[]' END) WITH ORDINALITY e(entry, n)
   CROSS JOIN LATERAL (
         SELECT e.entry -> 'pre' AS pre, e.entry -> 'post' AS post,
                encode(sha256(decode(e.entry #>> '{pre,content}', 'base64')), 'hex') AS pre_bytes,
                encode(sha256(decode(e.entry #>> '{post,content}', 'base64')), 'hex') AS post_bytes) s)
SELECT coalesce(h.run_id, e.run_id) AS run_id, coalesce(h.path, e.path) AS path,
       'a change that the patch does not have so' AS what
  FROM digests h
  FULL JOIN entries e ON e.run_id = h.run_id AND e.patch_sha256 = h.patch_sha256 AND e.n = h.n
 WHERE h.diff IS DISTINCT FROM h.diff_sha256
    OR NOT app.is_erased(coalesce(h.run_id, e.run_id), 'output') AND (
       (h.path, h.pre_mode, h.pre_sha256, h.post_mode, h.post_sha256) IS DISTINCT FROM
       (e.path, (e.pre ->> 'mode')::integer, e.pre ->> 'sha256', (e.post ->> 'mode')::integer, e.post ->> 'sha256')
    OR (e.pre_bytes, e.post_bytes) IS DISTINCT FROM (h.pre_sha256, h.post_sha256))
UNION ALL
SELECT p.run_id, NULL, 'a patch without its step, or of a build that failed'
  FROM patches p
 WHERE NOT EXISTS (SELECT 1 FROM app.run_steps s
                    WHERE s.run_id = p.run_id AND s.step_id = 'ApplyPatchST' AND s.status = 'ok'
                      AND s.output ->> 'patch' = p.patch_sha256)
    OR NOT EXISTS (SELECT 1 FROM app.sbx_runs b
                    WHERE b.run_id = p.run_id AND b.task_key = p.task_key AND b.err_code = 'NONE')
UNION ALL
SELECT s.run_id, NULL, 'a step whose changes are not on record'
  FROM app.run_steps s
 WHERE s.step_id = 'ApplyPatchST' AND s.status = 'ok'
   AND (s.output ->> 'entries')::bigint IS DISTINCT FROM (
       SELECT count(*) FROM app.patch_history h
        WHERE h.run_id = s.run_id AND h.patch_sha256 = s.output ->> 'patch')
UNION ALL
SELECT t.run_id, NULL, 'a test of another patch than those on record'
  FROM app.sbx_runs t
 WHERE t.request ? 'patched'
   AND NOT EXISTS (SELECT 1 FROM app.artifacts a JOIN patches p ON p.run_id = a.run_id AND p.patch_sha256 = a.sha256
                    WHERE a.run_id = t.run_id AND a.kind = 'patch' AND a.uri = t.request #>> '{patched,patch}');
