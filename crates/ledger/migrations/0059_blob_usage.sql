-- What each tenant's artifacts hold beyond their rows, kept as a sum: a quota is looked at before every run
-- and task, and must not cost a scan. A blob that two artifacts share counts for both.
CREATE TABLE app.blob_usage (
  tenant_id text PRIMARY KEY,
  bytes     bigint NOT NULL CHECK (bytes >= 0)
);
INSERT INTO app.blob_usage (tenant_id, bytes)
SELECT r.tenant_id, sum(a.size) FROM app.artifacts a JOIN app.runs r ON r.id = a.run_id
 WHERE a.inline IS NULL GROUP BY r.tenant_id;

CREATE FUNCTION app.blob_used() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO app.blob_usage (tenant_id, bytes)
  SELECT r.tenant_id, NEW.size FROM app.runs r WHERE r.id = NEW.run_id
  ON CONFLICT (tenant_id) DO UPDATE SET bytes = app.blob_usage.bytes + EXCLUDED.bytes;
  RETURN NULL;
END $$;
-- At the transaction's end: the tenant's row is the last that it locks, so that no two wait for each other.
CREATE CONSTRAINT TRIGGER artifacts_use_blobs AFTER INSERT ON app.artifacts DEFERRABLE INITIALLY DEFERRED
  FOR EACH ROW WHEN (NEW.inline IS NULL) EXECUTE FUNCTION app.blob_used();

-- NULL, or the quota and what is used of it, in MiB, where that is no less. The lower of the tenant's own and the
-- host's value holds; neither is read while nothing is stored.
CREATE FUNCTION app.blobs_over_quota(p_tenant text, p_default_mb bigint) RETURNS bigint[] LANGUAGE plpgsql STABLE AS $$
DECLARE
  used  bigint;
  quota bigint;
BEGIN
  SELECT bytes INTO used FROM app.blob_usage WHERE tenant_id = p_tenant;
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
