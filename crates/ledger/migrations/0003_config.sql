-- Every value that an operator ever set; the newest version counts. '*' is the host's own value: a
-- tenant's id never has that shape.
CREATE TABLE app.dynamic_config (
  tenant_id  text NOT NULL DEFAULT '*',
  key        text NOT NULL,
  version    integer NOT NULL CHECK (version >= 1),
  value      jsonb NOT NULL,
  actor      text NOT NULL,
  created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (tenant_id, key, version)
);
CREATE TRIGGER config_append_only BEFORE UPDATE OR DELETE ON app.dynamic_config
  FOR EACH ROW EXECUTE FUNCTION app.refuse_change();

-- What was done by hand: by whom, to what, why.
CREATE TABLE app.audit (
  id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  tenant_id  text NOT NULL,
  key_id     text NOT NULL,
  actor      text NOT NULL,
  op         text NOT NULL,
  target     text NOT NULL,
  reason     text NOT NULL,
  detail     jsonb,
  origin     text NOT NULL DEFAULT 'api-shim'
    CHECK (origin IN ('manual','engine-dbos','api-shim','webhook','webhook-ci','external','unknown')),
  created_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX audit_by_target ON app.audit (target);
CREATE TRIGGER audit_append_only BEFORE UPDATE OR DELETE ON app.audit
  FOR EACH ROW EXECUTE FUNCTION app.refuse_change();
