-- What an approver changed, as JSON Patch writes it: one row a field.
CREATE TABLE app.gate_edits (
  interaction_id bigint NOT NULL REFERENCES app.human_interactions,
  n              integer NOT NULL CHECK (n >= 0),
  run_id         text NOT NULL REFERENCES app.runs,
  gate_key       text NOT NULL,
  op             text NOT NULL CHECK (op IN ('add','replace')),
  path           text NOT NULL CHECK (path LIKE '/%'),
  from_value     jsonb,
  value          jsonb NOT NULL,
  PRIMARY KEY (interaction_id, n),
  CHECK ((op = 'replace') = (from_value IS NOT NULL))
);
CREATE INDEX edits_by_run ON app.gate_edits (run_id, gate_key);
CREATE TRIGGER edits_append_only BEFORE UPDATE OR DELETE ON app.gate_edits
  FOR EACH ROW EXECUTE FUNCTION app.refuse_change();
