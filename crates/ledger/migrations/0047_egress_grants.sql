-- What a person granted: one name, to one phase of one task's attempt, until a time.
CREATE TABLE app.egress_grants (
  run_id         text NOT NULL REFERENCES app.runs,
  task_key       text NOT NULL,
  phase          text NOT NULL,
  name           text NOT NULL,
  gate_key       text NOT NULL,
  interaction_id bigint NOT NULL UNIQUE REFERENCES app.human_interactions,
  granted_by     text NOT NULL,
  until          timestamptz NOT NULL,
  created_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (task_key, phase, name),
  FOREIGN KEY (task_key, phase, name) REFERENCES app.egress_asks
);
CREATE TRIGGER egress_grants_append_only BEFORE UPDATE OR DELETE ON app.egress_grants
  FOR EACH ROW EXECUTE FUNCTION app.refuse_change();
