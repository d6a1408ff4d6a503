-- What the test reports of an attempt say, as contracts::test_report reads them at its end. Each is of a file that is an artifact of the
-- attempt; one that could not be collected has no file, and a fault.
CREATE TABLE app.test_reports (
  run_id     text NOT NULL REFERENCES app.runs,
  step_id    text NOT NULL,
  task_key   text NOT NULL,
  attempt    integer NOT NULL CHECK (attempt >= 1),
  idx        integer NOT NULL CHECK (idx BETWEEN 0 AND 99),
  path       text NOT NULL CHECK (path <> ''),
  kind       text CHECK (kind IN ('junit','tap','lcov','cobertura')),
  report     jsonb NOT NULL,
  sha256     text CHECK (sha256 ~ '^[a-f0-9]{64}$'),
  origin     text NOT NULL
    CHECK (origin IN ('manual','engine-dbos','api-shim','webhook','webhook-ci','external','unknown')),
  created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (run_id, task_key, idx),
  CHECK (sha256 IS NOT NULL OR report ? 'fault')
);
CREATE TRIGGER test_reports_append_only BEFORE UPDATE OR DELETE ON app.test_reports
  FOR EACH ROW EXECUTE FUNCTION app.refuse_change();

-- The texts of failures are the tenant's, and fill the database as its artifacts do.
CREATE FUNCTION app.report_used() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM app.bytes_used(r.tenant_id, octet_length(NEW.report::text)) FROM app.runs r WHERE r.id = NEW.run_id;
  RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER test_reports_use_quota AFTER INSERT ON app.test_reports DEFERRABLE INITIALLY DEFERRED
  FOR EACH ROW EXECUTE FUNCTION app.report_used();
