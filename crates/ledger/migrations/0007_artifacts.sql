CREATE TABLE app.blobs (
  sha256     text PRIMARY KEY CHECK (sha256 ~ '^[a-f0-9]{64}$'),
  bytes      bytea NOT NULL,
  created_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
-- Logs and archives are often compressed already and are read whole: skip TOAST's own compression.
ALTER TABLE app.blobs ALTER COLUMN bytes SET STORAGE EXTERNAL;

-- The bytes are `inline` (small text) or the blob of the same digest.
CREATE TABLE app.artifacts (
  run_id     text NOT NULL REFERENCES app.runs,
  step_id    text NOT NULL,
  task_key   text NOT NULL,
  attempt    integer NOT NULL CHECK (attempt >= 1),
  idx        integer NOT NULL CHECK (idx >= 0),
  kind       text NOT NULL CHECK (kind IN ('artifact_index','file','timings','raw','stdout','stderr',
               'plan_card','patch','json_diagnostic')),
  name       text NOT NULL,
  uri        text NOT NULL,
  inline     text,
  sha256     text NOT NULL CHECK (sha256 ~ '^[a-f0-9]{64}$'),
  size       bigint NOT NULL CHECK (size >= 0),
  origin     text NOT NULL
    CHECK (origin IN ('manual','engine-dbos','api-shim','webhook','webhook-ci','external','unknown')),
  created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (run_id, step_id, task_key, attempt, idx)
);
CREATE INDEX artifacts_by_uri ON app.artifacts (uri);
CREATE TRIGGER artifacts_append_only BEFORE UPDATE OR DELETE ON app.artifacts
  FOR EACH ROW EXECUTE FUNCTION app.refuse_change();
