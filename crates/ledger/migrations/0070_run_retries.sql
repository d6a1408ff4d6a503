-- A retry is the same run again, from its first step without success: one row for each time that somebody
-- asked for it. The workflow goes on behind each of its recorded failures as often as there are rows.
CREATE TABLE app.run_retries (
  run_id     text NOT NULL REFERENCES app.runs,
  n          integer NOT NULL CHECK (n >= 1),
  from_step  text NOT NULL CHECK (from_step IN ('CompileST','DecideST','ExecuteST')),
  key_id     text NOT NULL,
  origin     text NOT NULL
    CHECK (origin IN ('manual','engine-dbos','api-shim','webhook','webhook-ci','external','unknown')),
  created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (run_id, n)
);
CREATE TRIGGER run_retries_append_only BEFORE UPDATE OR DELETE ON app.run_retries
  FOR EACH ROW EXECUTE FUNCTION app.refuse_change();
