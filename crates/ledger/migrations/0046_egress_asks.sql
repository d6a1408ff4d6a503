-- Names that a running task was refused and asked for, each with its gate.
CREATE TABLE app.egress_asks (
  run_id     text NOT NULL REFERENCES app.runs,
  task_key   text NOT NULL CHECK (task_key ~ '^[a-f0-9]{64}$'),
  phase      text NOT NULL CHECK (phase IN ('build','exec')),
  name       text NOT NULL CHECK (length(name) BETWEEN 3 AND 253 AND name = lower(name)),
  gate_key   text NOT NULL,
  created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (task_key, phase, name),
  UNIQUE (run_id, gate_key)
);
CREATE TRIGGER egress_asks_append_only BEFORE UPDATE OR DELETE ON app.egress_asks
  FOR EACH ROW EXECUTE FUNCTION app.refuse_change();
