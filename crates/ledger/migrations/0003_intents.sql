CREATE TABLE app.intents (
  id          text PRIMARY KEY CHECK (id ~ '^(it_[0-9a-f]{32}|ih_[0-9a-f]{64})$'),
  tenant_id   text NOT NULL,
  goal        text NOT NULL,
  inputs      jsonb NOT NULL,
  constraints jsonb NOT NULL,
  connectors  jsonb,
  intent_hash text CHECK (intent_hash ~ '^[a-f0-9]{64}$'),
  key_id      text NOT NULL,
  origin      text NOT NULL
    CHECK (origin IN ('manual','engine-dbos','api-shim','webhook','webhook-ci','external','unknown')),
  created_at  timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE TRIGGER intents_append_only BEFORE UPDATE OR DELETE ON app.intents
  FOR EACH ROW EXECUTE FUNCTION app.refuse_change();
