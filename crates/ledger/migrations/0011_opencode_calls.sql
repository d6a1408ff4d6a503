CREATE TABLE app.opencode_calls (
  op_key     text NOT NULL UNIQUE CHECK (op_key ~ '^[a-f0-9]{64}$'),
  run_id     text NOT NULL REFERENCES app.runs,
  step_id    text NOT NULL,
  attempt    integer NOT NULL CHECK (attempt >= 1),
  session_id text NOT NULL,
  request    jsonb NOT NULL,
  response   jsonb,
  origin     text NOT NULL
    CHECK (origin IN ('manual','engine-dbos','api-shim','webhook','webhook-ci','external','unknown')),
  created_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
