CREATE TABLE app.human_gates (
  run_id      text NOT NULL REFERENCES app.runs,
  workflow_id text NOT NULL,
  gate_key    text NOT NULL CHECK (gate_key ~ '^[a-z0-9][a-z0-9:_-]{0,127}$'),
  topic       text NOT NULL CHECK (topic ~ '^(human|sys):'),
  tenant_id   text NOT NULL,
  state       text NOT NULL DEFAULT 'open' CHECK (state IN ('open','received','timed_out','resolved','canceled')),
  form        jsonb NOT NULL,
  plan_digest text CHECK (plan_digest ~ '^[a-f0-9]{64}$'),
  ttl_s       integer NOT NULL CHECK (ttl_s BETWEEN 1 AND 86400),
  created_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
  deadline_at timestamptz NOT NULL,
  decided_at  timestamptz,
  escalation_workflow_id text,
  PRIMARY KEY (run_id, gate_key, topic)
);
CREATE INDEX gates_open ON app.human_gates (tenant_id, deadline_at) WHERE state = 'open';
CREATE INDEX gates_by_workflow ON app.human_gates (workflow_id, gate_key);

CREATE TABLE app.human_interactions (
  id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  workflow_id  text NOT NULL,
  run_id       text NOT NULL REFERENCES app.runs,
  gate_key     text NOT NULL,
  topic        text NOT NULL,
  dedupe_key   text NOT NULL CHECK (length(dedupe_key) BETWEEN 1 AND 256),
  payload_hash text NOT NULL CHECK (payload_hash ~ '^[a-f0-9]{64}$'),
  payload      jsonb NOT NULL,
  origin       text NOT NULL
    CHECK (origin IN ('manual','engine-dbos','api-shim','webhook','webhook-ci','external','unknown')),
  outcome      text NOT NULL CHECK (outcome IN ('accepted','late','already_decided')),
  key_id       text NOT NULL,
  created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
  UNIQUE (workflow_id, gate_key, topic, dedupe_key)
);
CREATE TRIGGER interactions_append_only BEFORE UPDATE OR DELETE ON app.human_interactions
  FOR EACH ROW EXECUTE FUNCTION app.refuse_change();

CREATE TABLE app.plan_approvals (
  run_id      text PRIMARY KEY REFERENCES app.runs,
  intent_id   text NOT NULL REFERENCES app.intents,
  plan_digest text NOT NULL CHECK (plan_digest ~ '^[a-f0-9]{64}$'),
  approved_by text NOT NULL,
  key_id      text NOT NULL,
  notes       text,
  origin      text NOT NULL
    CHECK (origin IN ('manual','engine-dbos','api-shim','webhook','webhook-ci','external','unknown')),
  approved_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE TRIGGER approvals_append_only BEFORE UPDATE OR DELETE ON app.plan_approvals
  FOR EACH ROW EXECUTE FUNCTION app.refuse_change();
