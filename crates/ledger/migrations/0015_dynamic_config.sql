CREATE TABLE app.dynamic_config (
  key        text NOT NULL,
  version    integer NOT NULL CHECK (version >= 1),
  value      jsonb NOT NULL,
  actor      text NOT NULL,
  created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (key, version)
);
CREATE TRIGGER config_append_only BEFORE UPDATE OR DELETE ON app.dynamic_config
  FOR EACH ROW EXECUTE FUNCTION app.refuse_change();
