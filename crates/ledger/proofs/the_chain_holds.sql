-- Claim: what was sealed is there as it was written, and no link of a chain is missing
-- A row means: a run, an audit row, an approval, evidence, a key, a sandbox, a snapshot or an erasure was deleted or changed after its seal
WITH links AS (
  SELECT c.*, lag(c.seq, 1, 0::bigint) OVER w AS last_seq, lag(c.digest, 1, '') OVER w AS last_digest
    FROM app.ledger_chain c
  WINDOW w AS (PARTITION BY c.kind ORDER BY c.seq))
SELECT l.run_id, l.tenant_id, l.kind, l.seq, l.row_key, 'a link that does not follow' AS what
  FROM links l
 WHERE l.seq <> l.last_seq + 1
    OR l.before <> l.last_digest
    OR l.digest <> app.chain_digest(l.kind, l.seq, l.row_key, l.row_digest, l.before)
 UNION ALL
SELECT c.run_id, c.tenant_id, c.kind, c.seq, c.row_key,
       CASE WHEN d.row_key IS NULL THEN 'a row that is gone' ELSE 'a row that was changed' END
  FROM app.ledger_chain c
  LEFT JOIN app.chained d ON d.kind = c.kind AND d.row_key = c.row_key
 WHERE d.row_key IS NULL
    OR app.row_digest(d.content) <> c.row_digest;
