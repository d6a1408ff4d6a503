CREATE TABLE app.run_steps (
  run_id      text NOT NULL REFERENCES app.runs,
  step_id     text NOT NULL,
  attempt     integer NOT NULL CHECK (attempt >= 1),
  status      text NOT NULL CHECK (status IN ('ok','failed','canceled')),
  output      jsonb,
  error       text,
  origin      text NOT NULL
    CHECK (origin IN ('manual','engine-dbos','api-shim','webhook','webhook-ci','external','unknown')),
  finished_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (run_id, step_id, attempt)
);
CREATE TRIGGER run_steps_append_only BEFORE UPDATE OR DELETE ON app.run_steps
  FOR EACH ROW EXECUTE FUNCTION app.refuse_change();
