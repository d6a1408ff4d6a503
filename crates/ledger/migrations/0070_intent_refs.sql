-- Branches and tags of repositories, bound to their commits: what an intent bound, once for all of its runs, retries and forks.
CREATE TABLE app.intent_refs (
  intent_id  text NOT NULL REFERENCES app.intents,
  -- Absolute path on the host, or URL.
  source     text NOT NULL CHECK (length(source) BETWEEN 1 AND 4096),
  -- As the recipe names it.
  ref        text NOT NULL CHECK (octet_length(ref) BETWEEN 1 AND 255),
  commit_id  text NOT NULL CHECK (commit_id ~ '^([0-9a-f]{40}|[0-9a-f]{64})$'),
  origin     text NOT NULL
    CHECK (origin IN ('manual','engine-dbos','api-shim','webhook','webhook-ci','external','unknown')),
  created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (intent_id, source, ref)
);
CREATE TRIGGER intent_refs_append_only BEFORE UPDATE OR DELETE ON app.intent_refs
  FOR EACH ROW EXECUTE FUNCTION app.refuse_change();
