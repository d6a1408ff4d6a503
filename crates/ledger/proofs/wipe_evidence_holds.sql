-- Claim: verified evidence has checks, and every check passed
-- A row means: evidence says verified although a check failed, or nothing was checked
SELECT w.run_id, w.sandbox_id, w.evidence -> 'checks' AS checks
  FROM app.secure_wipe_evidence w
 WHERE w.wipe_status = 'verified'
   AND (coalesce(jsonb_array_length(w.evidence -> 'checks'), 0) = 0
     OR EXISTS (
        SELECT 1 FROM jsonb_array_elements(w.evidence -> 'checks') c
         WHERE (c ->> 'ok') IS DISTINCT FROM 'true')
     OR w.evidence ->> 'sandboxId' IS DISTINCT FROM w.sandbox_id);
