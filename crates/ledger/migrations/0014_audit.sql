CREATE TABLE app.audit (
  id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  tenant_id  text NOT NULL,
  key_id     text NOT NULL,
  actor      text NOT NULL,
  op         text NOT NULL,
  target     text NOT NULL,
  reason     text NOT NULL,
  detail     jsonb,
  created_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX audit_by_target ON app.audit (target);
CREATE TRIGGER audit_append_only BEFORE UPDATE OR DELETE ON app.audit
  FOR EACH ROW EXECUTE FUNCTION app.refuse_change();
