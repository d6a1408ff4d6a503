-- Claim: every artifact's bytes have the recorded hash and size; those of an object are its row's, which prove reads from the store
-- A row means: stored bytes were changed or are missing
SELECT a.run_id, a.uri, a.sha256, encode(sha256(s.bytes), 'hex') AS actual
  FROM app.artifacts a
  LEFT JOIN app.blobs b ON b.sha256 = a.sha256 AND a.inline IS NULL
 CROSS JOIN LATERAL (SELECT coalesce(convert_to(a.inline, 'UTF8'), b.bytes) AS bytes) s
 WHERE a.erased_in IS NULL AND a.object_id IS NULL
   AND (s.bytes IS NULL
    OR encode(sha256(s.bytes), 'hex') <> a.sha256
    OR octet_length(s.bytes) <> a.size)
UNION ALL
SELECT a.run_id, a.uri, a.sha256, o.sha256
  FROM app.artifacts a
  JOIN app.runs r ON r.id = a.run_id
  LEFT JOIN app.stored_objects o ON o.id = a.object_id
 WHERE a.object_id IS NOT NULL
   AND (o.sha256, o.size, o.tenant_id) IS DISTINCT FROM (a.sha256, a.size, r.tenant_id);
