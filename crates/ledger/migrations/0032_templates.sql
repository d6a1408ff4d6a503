-- Templates that tenants build by E2B's API. A build runs its steps in a sandbox of its tenant; what it leaves is a snapshot
-- of the kind `template`, whose sealed file has its environment and commands too. A tag names a build that is ready.
--   waiting --the commit that records its sandbox--> building --> ready
--                                                      `--> error, also by the end of that sandbox
CREATE TABLE app.templates (
  id          text PRIMARY KEY CHECK (id ~ '^[a-z0-9]{20}$'),
  tenant_id   text NOT NULL CHECK (tenant_id <> ''),
  name        text NOT NULL CHECK (name ~ '^[a-z0-9][a-z0-9_-]{0,62}$'),
  key_id      text NOT NULL,
  created_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
  updated_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
  deleted_at  timestamptz
);
CREATE UNIQUE INDEX templates_by_name ON app.templates (tenant_id, name) WHERE deleted_at IS NULL;

CREATE TABLE app.template_builds (
  id          text PRIMARY KEY CHECK (id ~ '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$'),
  template_id text NOT NULL REFERENCES app.templates,
  tenant_id   text NOT NULL CHECK (tenant_id <> ''),
  key_id      text NOT NULL,
  -- What its sandboxes have, and the tags that it gets once it is ready.
  cpu         integer CHECK (cpu > 0),
  mem_mb      integer CHECK (mem_mb > 0),
  tags        text[] NOT NULL CHECK (cardinality(tags) > 0),
  status      text NOT NULL DEFAULT 'waiting' CHECK (status IN ('waiting','building','ready','error')),
  live_id     text UNIQUE REFERENCES app.live_sandboxes,
  snapshot_id text UNIQUE REFERENCES app.snapshots,
  reason      text CHECK (reason <> ''),
  step        text CHECK (step <> ''),
  created_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
  ended_at    timestamptz,
  CHECK ((status = 'ready') = (snapshot_id IS NOT NULL)),
  CHECK ((status = 'error') = (reason IS NOT NULL)),
  CHECK ((status IN ('ready','error')) = (ended_at IS NOT NULL)),
  CHECK (status NOT IN ('building','ready') OR live_id IS NOT NULL)
);
CREATE INDEX template_builds_by_template ON app.template_builds (template_id, created_at DESC);
CREATE UNIQUE INDEX template_builds_one_at_a_time ON app.template_builds (template_id) WHERE status = 'building';

CREATE FUNCTION app.template_builds_guard() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF TG_OP = 'DELETE' OR OLD.ended_at IS NOT NULL
     OR (NEW.id, NEW.template_id, NEW.tenant_id, NEW.key_id, NEW.cpu, NEW.mem_mb, NEW.tags, NEW.created_at)
        IS DISTINCT FROM
        (OLD.id, OLD.template_id, OLD.tenant_id, OLD.key_id, OLD.cpu, OLD.mem_mb, OLD.tags, OLD.created_at)
     OR OLD.live_id IS NOT NULL AND NEW.live_id IS DISTINCT FROM OLD.live_id
     OR OLD.status = 'building' AND NEW.status = 'waiting' THEN
    RAISE EXCEPTION 'template_builds % is append-only', OLD.id USING ERRCODE = 'restrict_violation';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER template_builds_guard BEFORE UPDATE OR DELETE ON app.template_builds
  FOR EACH ROW EXECUTE FUNCTION app.template_builds_guard();

-- A build whose sandbox is over has failed, whoever ended it: its tenant, its time, or the loss of its server.
CREATE FUNCTION app.template_build_ends_with_live() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  UPDATE app.template_builds
     SET status = 'error', reason = 'the sandbox of the build ended: ' || NEW.end_reason, ended_at = clock_timestamp()
   WHERE live_id = NEW.id AND status = 'building';
  RETURN NULL;
END $$;
CREATE TRIGGER template_build_ends_with_live AFTER UPDATE OF ended_at ON app.live_sandboxes
  FOR EACH ROW WHEN (OLD.ended_at IS NULL AND NEW.ended_at IS NOT NULL)
  EXECUTE FUNCTION app.template_build_ends_with_live();

CREATE TABLE app.template_tags (
  template_id text NOT NULL REFERENCES app.templates,
  tag         text NOT NULL CHECK (tag ~ '^[a-z0-9._-]{1,128}$'),
  build_id    text NOT NULL REFERENCES app.template_builds,
  assigned_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (template_id, tag)
);
CREATE INDEX template_tags_by_build ON app.template_tags (build_id);

-- What the steps of a build said.
CREATE TABLE app.template_logs (
  build_id    text NOT NULL REFERENCES app.template_builds,
  seq         integer NOT NULL CHECK (seq >= 0),
  at_ms       bigint NOT NULL,
  level       text NOT NULL CHECK (level IN ('debug','info','warn','error')),
  step        text CHECK (step <> ''),
  message     text NOT NULL,
  PRIMARY KEY (build_id, seq)
);

-- Files that a client sent for the COPY steps of a template, by the name that it gave them: an archive in a sealed file of
-- one host, as with snapshots.
CREATE TABLE app.template_files (
  id          text PRIMARY KEY CHECK (id ~ '^[a-z0-9]{20}$'),
  template_id text NOT NULL REFERENCES app.templates,
  tenant_id   text NOT NULL CHECK (tenant_id <> ''),
  hash        text NOT NULL CHECK (hash ~ '^[a-f0-9]{64}$'),
  place       text NOT NULL CHECK (place <> ''),
  bytes       bigint NOT NULL CHECK (bytes > 0),
  sealed_key  bytea CHECK (octet_length(sealed_key) = 60),
  sealed_by   text NOT NULL CHECK (sealed_by ~ '^[a-f0-9]{64}$'),
  created_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
  used_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
  erased_at   timestamptz,
  gone_at     timestamptz,
  CHECK ((sealed_key IS NULL) = (erased_at IS NOT NULL)),
  CHECK (gone_at IS NULL OR erased_at IS NOT NULL)
);
CREATE UNIQUE INDEX template_files_by_hash ON app.template_files (template_id, hash) WHERE erased_at IS NULL;
CREATE INDEX template_files_left ON app.template_files (place) WHERE gone_at IS NULL;
CREATE CONSTRAINT TRIGGER template_files_use_quota AFTER INSERT ON app.template_files DEFERRABLE INITIALLY DEFERRED
  FOR EACH ROW EXECUTE FUNCTION app.snapshot_used();
CREATE CONSTRAINT TRIGGER template_files_free_quota AFTER UPDATE OF erased_at ON app.template_files
  DEFERRABLE INITIALLY DEFERRED
  FOR EACH ROW WHEN (OLD.erased_at IS NULL AND NEW.erased_at IS NOT NULL) EXECUTE FUNCTION app.snapshot_used();

ALTER TABLE app.snapshots DROP CONSTRAINT snapshots_kind_check;
ALTER TABLE app.snapshots ADD CONSTRAINT snapshots_kind_check CHECK (kind IN ('pause','snapshot','template'));
