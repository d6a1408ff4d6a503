-- What time did to a gate: reminders and its escalation.
CREATE TABLE app.gate_journal (
  run_id      text NOT NULL REFERENCES app.runs,
  gate_key    text NOT NULL,
  event       text NOT NULL CHECK (event IN ('reminded','escalated')),
  n           integer NOT NULL CHECK (n >= 1),
  detail      jsonb NOT NULL,
  created_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (run_id, gate_key, event, n)
);
CREATE TRIGGER journal_append_only BEFORE UPDATE OR DELETE ON app.gate_journal
  FOR EACH ROW EXECUTE FUNCTION app.refuse_change();
