-- A recipe's text decides what its run does: a run has the host's reach only where the host's own admin brought exactly this
-- text. Anybody of the tenant may import another text under the same id and version.
ALTER TABLE app.recipe_versions ADD COLUMN is_host_admins boolean NOT NULL DEFAULT false;

ALTER FUNCTION app.has_hosts_reach(text, text, text) RENAME TO edits_keep_reach;

CREATE FUNCTION app.has_hosts_reach(p_run_id text, p_run_key text, p_intent_key text)
RETURNS boolean LANGUAGE plpgsql STABLE AS $$
BEGIN
  RETURN app.edits_keep_reach(p_run_id, p_run_key, p_intent_key) AND NOT EXISTS (
    SELECT 1 FROM app.runs r
      JOIN app.recipe_versions v
        ON v.tenant_id = r.tenant_id AND v.id = r.recipe_id AND v.hash = r.recipe_hash
     WHERE r.id = p_run_id AND NOT v.is_host_admins);
END $$;
