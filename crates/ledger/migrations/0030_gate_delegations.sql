-- Somebody answers in another's place, until then. An end is a row of its own.
CREATE TABLE app.gate_delegations (
  id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  tenant_id  text NOT NULL,
  from_key   text NOT NULL REFERENCES app.api_keys,
  to_key     text NOT NULL REFERENCES app.api_keys,
  group_name text,
  reason     text NOT NULL,
  created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  expires_at timestamptz NOT NULL,
  CHECK (from_key <> to_key),
  CHECK (expires_at > created_at)
);
CREATE INDEX delegations_by_holder ON app.gate_delegations (to_key, expires_at);
CREATE TRIGGER delegations_append_only BEFORE UPDATE OR DELETE ON app.gate_delegations
  FOR EACH ROW EXECUTE FUNCTION app.refuse_change();

CREATE TABLE app.gate_delegation_ends (
  delegation_id bigint PRIMARY KEY REFERENCES app.gate_delegations,
  key_id        text NOT NULL,
  ended_at      timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE TRIGGER delegation_ends_append_only BEFORE UPDATE OR DELETE ON app.gate_delegation_ends
  FOR EACH ROW EXECUTE FUNCTION app.refuse_change();
