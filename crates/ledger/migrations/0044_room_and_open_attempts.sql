-- Bytes that a tenant's quota leaves for what is written now: layers of its builds make room where others need it.
CREATE FUNCTION app.blobs_rest(p_tenant text, p_default_mb bigint) RETURNS bigint LANGUAGE sql STABLE AS $$
  SELECT greatest(0,
    (SELECT min(coalesce(v.mb, p_default_mb)) * 1048576 FROM (
       SELECT (SELECT CASE WHEN c.value <> 'null' THEN (c.value #>> '{}')::bigint END FROM app.dynamic_config c
                WHERE c.tenant_id = t.id AND c.key = 'quota.blobs_mb' ORDER BY c.version DESC LIMIT 1) AS mb, t.id
         FROM unnest(ARRAY['*', p_tenant]) AS t(id)) v
      WHERE v.mb IS NOT NULL OR v.id = '*')
    - (SELECT coalesce(sum(bytes), 0) FROM app.blob_usage_parts WHERE tenant_id = p_tenant)
    + (SELECT coalesce(sum(s.bytes), 0) FROM app.snapshots s
        WHERE s.tenant_id = p_tenant AND s.kind = 'layer' AND s.erased_at IS NULL))::bigint
$$;

-- The leader looks all the time for attempts that no workflow answers any more; those that are answered are all others.
CREATE INDEX sbx_runs_open ON app.sbx_runs (created_at) WHERE response IS NULL;
