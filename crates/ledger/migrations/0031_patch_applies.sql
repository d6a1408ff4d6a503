-- Where a patch was written: one row for each apply gate that somebody agreed to, once the branch is there.
CREATE TABLE app.patch_applies (
  approved_in  text PRIMARY KEY REFERENCES app.runs,
  run_id       text NOT NULL REFERENCES app.runs,
  step_id      text NOT NULL,
  patch_sha256 text NOT NULL CHECK (patch_sha256 ~ '^[a-f0-9]{64}$'),
  repo         text NOT NULL CHECK (length(repo) BETWEEN 1 AND 4096),
  branch       text NOT NULL CHECK (length(branch) BETWEEN 1 AND 1024),
  base         text NOT NULL CHECK (base ~ '^([a-f0-9]{40}|[a-f0-9]{64})$'),
  commit_id    text NOT NULL CHECK (commit_id ~ '^([a-f0-9]{40}|[a-f0-9]{64})$'),
  key_id       text NOT NULL,
  written_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
  CHECK (approved_in <> run_id)
);
CREATE INDEX patch_applies_by_run ON app.patch_applies (run_id, written_at);
CREATE TRIGGER patch_applies_append_only BEFORE UPDATE OR DELETE ON app.patch_applies
  FOR EACH ROW EXECUTE FUNCTION app.refuse_change();
