CREATE TABLE app.blobs (
  sha256     text PRIMARY KEY CHECK (sha256 ~ '^[a-f0-9]{64}$'),
  bytes      bytea NOT NULL,
  created_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
-- Logs and archives are often compressed already and are read whole: skip TOAST's own compression.
ALTER TABLE app.blobs ALTER COLUMN bytes SET STORAGE EXTERNAL;

-- The bytes are `inline` (small text) or the blob of the same digest.
CREATE TABLE app.artifacts (
  run_id     text NOT NULL REFERENCES app.runs,
  step_id    text NOT NULL,
  task_key   text NOT NULL,
  attempt    integer NOT NULL CHECK (attempt >= 1),
  idx        integer NOT NULL CHECK (idx >= 0),
  kind       text NOT NULL CHECK (kind IN ('artifact_index','file','timings','raw','stdout','stderr',
               'plan_card','patch','json_diagnostic')),
  name       text NOT NULL,
  uri        text NOT NULL,
  inline     text,
  sha256     text NOT NULL CHECK (sha256 ~ '^[a-f0-9]{64}$'),
  size       bigint NOT NULL CHECK (size >= 0),
  origin     text NOT NULL
    CHECK (origin IN ('manual','engine-dbos','api-shim','webhook','webhook-ci','external','unknown')),
  created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (run_id, step_id, task_key, attempt, idx)
);
-- By its whole address only, and a path has up to 4,096 bytes: a b-tree holds no key above 2,704.
CREATE INDEX artifacts_by_uri ON app.artifacts USING hash (uri);
-- The proofs look for the artifacts of every task, and so does each reader of a task's index.
CREATE INDEX artifacts_by_task ON app.artifacts (task_key, idx);
CREATE TRIGGER artifacts_append_only BEFORE UPDATE OR DELETE ON app.artifacts
  FOR EACH ROW EXECUTE FUNCTION app.refuse_change();

CREATE VIEW app.latest_artifacts AS
  SELECT a.* FROM app.artifacts a
  JOIN (SELECT run_id, step_id, max(attempt) AS attempt FROM app.artifacts GROUP BY 1, 2) l
    USING (run_id, step_id, attempt);

-- The bytes that each tenant stores beyond its rows, kept as a sum: a quota is looked at before every run
-- and task, and must not cost a scan. A blob that two artifacts share counts for both.
-- In parts, one of which a connection adds to: every start and every answer counts, and starts of one tenant must not
-- wait for each other's commits.
CREATE TABLE app.blob_usage_parts (
  tenant_id text NOT NULL,
  part      integer NOT NULL CHECK (part BETWEEN 0 AND 15),
  bytes     bigint NOT NULL CHECK (bytes >= 0),
  PRIMARY KEY (tenant_id, part)
) WITH (fillfactor = 50);
CREATE VIEW app.blob_usage AS
  SELECT tenant_id, sum(bytes)::bigint AS bytes FROM app.blob_usage_parts GROUP BY tenant_id;

CREATE FUNCTION app.bytes_used(p_tenant text, p_bytes bigint) RETURNS void LANGUAGE sql AS $$
  INSERT INTO app.blob_usage_parts (tenant_id, part, bytes) VALUES (p_tenant, pg_backend_pid() % 16, p_bytes)
  ON CONFLICT (tenant_id, part) DO UPDATE SET bytes = app.blob_usage_parts.bytes + EXCLUDED.bytes
$$;

CREATE FUNCTION app.blob_used() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM app.bytes_used(r.tenant_id, NEW.size) FROM app.runs r WHERE r.id = NEW.run_id;
  RETURN NULL;
END $$;
-- At the transaction's end: the tenant's part is the last row that it locks, so no two wait for each other.
CREATE CONSTRAINT TRIGGER artifacts_use_blobs AFTER INSERT ON app.artifacts DEFERRABLE INITIALLY DEFERRED
  FOR EACH ROW WHEN (NEW.inline IS NULL) EXECUTE FUNCTION app.blob_used();

-- A tenant's texts fill the database as its artifacts do, small ones by their number. Inputs of intents and recipes
-- count here, answers to gates in 0009.
CREATE FUNCTION app.intent_used() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM app.bytes_used(NEW.tenant_id, octet_length(NEW.inputs::text) + octet_length(NEW.goal));
  RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER intents_use_quota AFTER INSERT ON app.intents DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
  EXECUTE FUNCTION app.intent_used();

CREATE FUNCTION app.recipe_used() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM app.bytes_used(NEW.tenant_id, octet_length(NEW.json::text));
  RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER recipes_use_quota AFTER INSERT ON app.recipe_versions DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
  EXECUTE FUNCTION app.recipe_used();

-- NULL, or the quota and what is used of it, in MiB, once the quota is reached. The lower of the tenant's
-- own and the host's value holds; neither is read while nothing is stored.
CREATE FUNCTION app.blobs_over_quota(p_tenant text, p_default_mb bigint) RETURNS bigint[] LANGUAGE plpgsql STABLE AS $$
DECLARE
  used  bigint;
  quota bigint;
BEGIN
  SELECT sum(bytes) INTO used FROM app.blob_usage_parts WHERE tenant_id = p_tenant;
  IF used IS NULL OR used = 0 THEN
    RETURN NULL;
  END IF;
  SELECT min(coalesce(v.mb, p_default_mb)) INTO quota FROM (
    SELECT (SELECT CASE WHEN c.value <> 'null' THEN (c.value #>> '{}')::bigint END FROM app.dynamic_config c
             WHERE c.tenant_id = t.id AND c.key = 'quota.blobs_mb' ORDER BY c.version DESC LIMIT 1) AS mb, t.id
      FROM unnest(ARRAY['*', p_tenant]) AS t(id)) v
   WHERE v.mb IS NOT NULL OR v.id = '*';
  IF used / 1048576 < quota THEN
    RETURN NULL;
  END IF;
  RETURN ARRAY[quota, used / 1048576];
END $$;
