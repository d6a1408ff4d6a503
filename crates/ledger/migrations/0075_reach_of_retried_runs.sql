-- A retry is the same run since 0070, and its row says who asked: what a run does again is at the word of the last of them, as
-- 0066 has it for a fork and for a run that was resumed.
CREATE OR REPLACE FUNCTION app.has_hosts_reach(p_run_id text, p_run_key text, p_intent_key text)
RETURNS boolean LANGUAGE plpgsql STABLE AS $$
BEGIN
  RETURN app.recipes_keep_reach(p_run_id, p_run_key, p_intent_key) AND NOT EXISTS (
    SELECT 1 FROM app.runs r
     WHERE r.id = p_run_id AND (r.retry_of IS NOT NULL OR r.asked_by IS NOT NULL) AND NOT app.is_host_admin(r.asked_by))
   AND NOT EXISTS (
    SELECT 1 FROM app.run_retries t
     WHERE t.run_id = p_run_id AND NOT app.is_host_admin(t.key_id)
       AND t.n = (SELECT max(n) FROM app.run_retries WHERE run_id = p_run_id));
END $$;
