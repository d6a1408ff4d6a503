-- Claim: every artifact's bytes have the recorded hash and size
-- A row means: stored bytes were changed or are missing
SELECT a.run_id, a.uri, a.sha256, encode(sha256(s.bytes), 'hex') AS actual
  FROM app.artifacts a
  LEFT JOIN app.blobs b ON b.sha256 = a.sha256 AND a.inline IS NULL
 CROSS JOIN LATERAL (SELECT coalesce(convert_to(a.inline, 'UTF8'), b.bytes) AS bytes) s
 WHERE s.bytes IS NULL
    OR encode(sha256(s.bytes), 'hex') <> a.sha256
    OR octet_length(s.bytes) <> a.size;
