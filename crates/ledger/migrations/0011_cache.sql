-- Which base of which host belongs to which tenant. The disk says whether a base exists; this table says
-- who may have it. A base that is made again is a new row.
--
--   ready   tasks of its tenant get it
--   doomed  no task gets it any more; its host is to remove it
--   evicted it is gone from its host's disk
CREATE TABLE app.dependency_cache_index (
  entry_id     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  org_id       text NOT NULL CHECK (org_id ~ '^[a-z0-9][a-z0-9_-]{0,62}$'),
  repo_id      text NOT NULL CHECK (octet_length(repo_id) BETWEEN 1 AND 256),
  lock_hash    text NOT NULL CHECK (lock_hash ~ '^[a-f0-9]{64}$'),
  -- The name on disk: it begins with the tenant, so no tenant can reach another's.
  key          text NOT NULL
    CHECK (key = encode(sha256(convert_to(org_id || E'\n' || repo_id || E'\n' || lock_hash, 'UTF8')), 'hex')),
  host_id      text NOT NULL,
  state_dir    text NOT NULL,
  digest       text NOT NULL CHECK (digest ~ '^[a-f0-9]{64}$'),
  bytes        bigint NOT NULL CHECK (bytes >= 0),
  files        bigint NOT NULL CHECK (files >= 0),
  state        text NOT NULL DEFAULT 'ready' CHECK (state IN ('ready','doomed','evicted')),
  created_by   text NOT NULL REFERENCES app.sbx_runs (task_key),
  origin       text NOT NULL
    CHECK (origin IN ('manual','engine-dbos','api-shim','webhook','webhook-ci','external','unknown')),
  created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
  last_used_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  evicted_at   timestamptz,
  evicted_why  text CHECK (evicted_why IN ('asked','age','size','missing','damaged')),
  CHECK ((state = 'evicted') = (evicted_at IS NOT NULL)),
  CHECK ((evicted_at IS NULL) = (evicted_why IS NULL))
);
CREATE UNIQUE INDEX dependency_cache_one_base ON app.dependency_cache_index (host_id, state_dir, key)
  WHERE state <> 'evicted';
CREATE INDEX dependency_cache_by_org ON app.dependency_cache_index (org_id, last_used_at);
CREATE INDEX dependency_cache_by_maker ON app.dependency_cache_index (created_by);

CREATE FUNCTION app.dependency_cache_guard() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF TG_OP = 'DELETE' OR OLD.state = 'evicted' OR (OLD.state = 'doomed' AND NEW.state = 'ready')
     OR (NEW.org_id, NEW.repo_id, NEW.lock_hash, NEW.key, NEW.host_id, NEW.state_dir, NEW.digest, NEW.bytes,
         NEW.files, NEW.created_by, NEW.created_at)
        IS DISTINCT FROM
        (OLD.org_id, OLD.repo_id, OLD.lock_hash, OLD.key, OLD.host_id, OLD.state_dir, OLD.digest, OLD.bytes,
         OLD.files, OLD.created_by, OLD.created_at) THEN
    RAISE EXCEPTION 'dependency_cache_index % only goes from ready to evicted', OLD.entry_id
      USING ERRCODE = 'restrict_violation';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER dependency_cache_guard BEFORE UPDATE OR DELETE ON app.dependency_cache_index
  FOR EACH ROW EXECUTE FUNCTION app.dependency_cache_guard();

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
