-- Claim: verified evidence was written between the begin and the end of its session, says when, and has the looks that every wipe makes
-- A row means: evidence was backdated, or looks were taken out of it
SELECT w.run_id, w.sandbox_id, w.look, w.wipe_timestamp, w.created_at, s.created_at AS began, s.ended_at,
       (SELECT jsonb_agg(c -> 'kind') FROM jsonb_array_elements(w.evidence -> 'checks') c) AS kinds
  FROM app.secure_wipe_evidence w
  JOIN app.remote_execution_sessions s ON s.sandbox_id = w.sandbox_id
 WHERE w.wipe_status = 'verified'
   AND (app.ms(w.wipe_timestamp) IS DISTINCT FROM (w.evidence ->> 'wipedAtMs')::bigint
     OR w.created_at < s.created_at
     OR w.created_at > s.ended_at + interval '1 minute'
     -- The host's clock says when it was wiped, and may be wrong by hours.
     OR abs(extract(epoch FROM w.wipe_timestamp - w.created_at)) > 43200
     OR EXISTS (
        SELECT 1 FROM unnest(ARRAY['sentinel', 'directory', 'runtime-state']) need(kind)
         WHERE NOT EXISTS (SELECT 1 FROM jsonb_array_elements(w.evidence -> 'checks') c
                            WHERE c ->> 'kind' = need.kind)));
