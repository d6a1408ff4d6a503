-- A retry, a fork or a resumed run runs again on what the host holds by then, at the word of who asks for it: it has the host's reach only
-- where the host's own admin asked, and for every repetition that it comes from. Before this migration nobody was noted.
ALTER TABLE app.runs ADD COLUMN asked_by text;

ALTER FUNCTION app.has_hosts_reach(text, text, text) RENAME TO recipes_keep_reach;

CREATE FUNCTION app.has_hosts_reach(p_run_id text, p_run_key text, p_intent_key text)
RETURNS boolean LANGUAGE plpgsql STABLE AS $$
BEGIN
  RETURN app.recipes_keep_reach(p_run_id, p_run_key, p_intent_key) AND NOT EXISTS (
    SELECT 1 FROM app.runs r
     WHERE r.id = p_run_id AND (r.retry_of IS NOT NULL OR r.asked_by IS NOT NULL) AND NOT app.is_host_admin(r.asked_by));
END $$;
