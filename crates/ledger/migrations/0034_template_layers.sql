-- Layers of builds: the files after a step, from which a later build of the same tenant goes on if it begins with the same
-- steps. A layer is a snapshot: of the kind `layer`, or the files that a build left (`template`).
CREATE TABLE app.template_layers (
  snapshot_id text PRIMARY KEY REFERENCES app.snapshots,
  tenant_id   text NOT NULL CHECK (tenant_id <> ''),
  build_id    text NOT NULL REFERENCES app.template_builds,
  -- Everything that the files depend on, under the key of secrets: variables may be secrets.
  key         text NOT NULL CHECK (key ~ '^[a-f0-9]{64}$'),
  -- Steps that the files have behind them.
  steps       integer NOT NULL CHECK (steps > 0),
  created_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
  used_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
  -- No build could go on from it: none tries again.
  spoiled_at  timestamptz
);
CREATE INDEX template_layers_by_key ON app.template_layers (tenant_id, key);

CREATE FUNCTION app.template_layers_guard() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF TG_OP = 'DELETE' OR OLD.spoiled_at IS NOT NULL AND NEW.spoiled_at IS DISTINCT FROM OLD.spoiled_at
     OR (NEW.snapshot_id, NEW.tenant_id, NEW.build_id, NEW.key, NEW.steps, NEW.created_at)
        IS DISTINCT FROM (OLD.snapshot_id, OLD.tenant_id, OLD.build_id, OLD.key, OLD.steps, OLD.created_at) THEN
    RAISE EXCEPTION 'template_layers % is append-only', OLD.snapshot_id USING ERRCODE = 'restrict_violation';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER template_layers_guard BEFORE UPDATE OR DELETE ON app.template_layers
  FOR EACH ROW EXECUTE FUNCTION app.template_layers_guard();

ALTER TABLE app.snapshots DROP CONSTRAINT snapshots_kind_check;
ALTER TABLE app.snapshots ADD CONSTRAINT snapshots_kind_check CHECK (kind IN ('pause','snapshot','template','layer'));

-- The layer that a build went on from, and the steps that it did not run.
ALTER TABLE app.template_builds
  ADD COLUMN layer_id text REFERENCES app.snapshots,
  ADD COLUMN cached   integer CHECK (cached > 0),
  ADD CHECK ((layer_id IS NULL) = (cached IS NULL)),
  ADD CHECK (layer_id IS NULL OR live_id IS NOT NULL);
CREATE OR REPLACE FUNCTION app.template_builds_guard() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF TG_OP = 'DELETE' OR OLD.ended_at IS NOT NULL
     OR (NEW.id, NEW.template_id, NEW.tenant_id, NEW.key_id, NEW.cpu, NEW.mem_mb, NEW.tags, NEW.created_at)
        IS DISTINCT FROM
        (OLD.id, OLD.template_id, OLD.tenant_id, OLD.key_id, OLD.cpu, OLD.mem_mb, OLD.tags, OLD.created_at)
     OR OLD.live_id IS NOT NULL
        AND (NEW.live_id, NEW.layer_id, NEW.cached) IS DISTINCT FROM (OLD.live_id, OLD.layer_id, OLD.cached)
     OR OLD.status = 'building' AND NEW.status = 'waiting' THEN
    RAISE EXCEPTION 'template_builds % is append-only', OLD.id USING ERRCODE = 'restrict_violation';
  END IF;
  RETURN NEW;
END $$;

-- What an archive unpacks to: clients name it themselves, and a layer depends on what is in it.
ALTER TABLE app.template_files ADD COLUMN content text CHECK (content ~ '^[a-f0-9]{64}$');

-- A quota that is full with layers is not full for anything else: they are erased first.
CREATE FUNCTION app.blobs_full(p_tenant text, p_default_mb bigint) RETURNS bigint[] LANGUAGE plpgsql STABLE AS $$
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
  RETURN ARRAY[quota, used];
END $$;
CREATE OR REPLACE FUNCTION app.blobs_over_quota(p_tenant text, p_default_mb bigint) RETURNS bigint[] LANGUAGE plpgsql STABLE AS $$
DECLARE
  full_with bigint[] := app.blobs_full(p_tenant, p_default_mb);
  used      bigint;
BEGIN
  IF full_with IS NULL THEN
    RETURN NULL;
  END IF;
  used := full_with[2] - (SELECT coalesce(sum(s.bytes), 0) FROM app.snapshots s
                           WHERE s.tenant_id = p_tenant AND s.kind = 'layer' AND s.erased_at IS NULL);
  IF used / 1048576 < full_with[1] THEN
    RETURN NULL;
  END IF;
  RETURN ARRAY[full_with[1], used / 1048576];
END $$;
-- Destroys the keys of as many layers as it takes, those first that were used longest ago.
CREATE FUNCTION app.layers_make_room(p_tenant text, p_default_mb bigint) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
  full_with bigint[] := app.blobs_full(p_tenant, p_default_mb);
  erased    bigint;
BEGIN
  IF full_with IS NULL THEN
    RETURN 0;
  END IF;
  UPDATE app.snapshots s SET sealed_key = NULL, erased_at = clock_timestamp()
    FROM (SELECT l.snapshot_id, sum(o.bytes) OVER (ORDER BY l.used_at, l.snapshot_id) - o.bytes AS before
            FROM app.template_layers l JOIN app.snapshots o ON o.id = l.snapshot_id
           WHERE l.tenant_id = p_tenant AND o.kind = 'layer' AND o.erased_at IS NULL) x
   WHERE s.id = x.snapshot_id AND s.erased_at IS NULL AND x.before <= full_with[2] - full_with[1] * 1048576;
  GET DIAGNOSTICS erased = ROW_COUNT;
  RETURN erased;
END $$;

-- How often a template was used. Other templates have shorter names, and no row here.
CREATE INDEX live_sandboxes_by_template ON app.live_sandboxes (template) WHERE length(template) = 20;
