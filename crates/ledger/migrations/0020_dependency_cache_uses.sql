-- Each start of a task on a base, so that it can be shown that no task ever had another tenant's.
CREATE TABLE app.dependency_cache_uses (
  task_key     text NOT NULL REFERENCES app.sbx_runs (task_key),
  execution_no integer NOT NULL CHECK (execution_no >= 1),
  entry_id     bigint NOT NULL REFERENCES app.dependency_cache_index (entry_id),
  origin       text NOT NULL
    CHECK (origin IN ('manual','engine-dbos','api-shim','webhook','webhook-ci','external','unknown')),
  used_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (task_key, execution_no)
);
CREATE INDEX dependency_cache_uses_by_entry ON app.dependency_cache_uses (entry_id);
CREATE TRIGGER dependency_cache_uses_append_only BEFORE UPDATE OR DELETE ON app.dependency_cache_uses
  FOR EACH ROW EXECUTE FUNCTION app.refuse_change();
