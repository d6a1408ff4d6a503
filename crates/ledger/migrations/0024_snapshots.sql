-- The files of a long-lived sandbox, kept in a file of one host: by a pause, which ends its processes, or by a snapshot,
-- after which it goes on. The file is sealed with a key of its own, and that key, sealed for its tenant, is in this row
-- alone: without its bytes nobody reads the file again.
CREATE TABLE app.snapshots (
  id          text PRIMARY KEY CHECK (id ~ '^[a-z0-9]{20}$'),
  tenant_id   text NOT NULL CHECK (tenant_id <> ''),
  live_id     text NOT NULL REFERENCES app.live_sandboxes,
  run_id      text NOT NULL REFERENCES app.runs,
  kind        text NOT NULL CHECK (kind IN ('pause','snapshot')),
  name        text CHECK (name <> ''),
  template    text NOT NULL CHECK (template <> ''),
  -- The host and the directory that have the file.
  place       text NOT NULL CHECK (place <> ''),
  bytes       bigint NOT NULL CHECK (bytes > 0),
  sha256      text NOT NULL CHECK (sha256 ~ '^[a-f0-9]{64}$'),
  -- Nonce, sealed key and tag; and the fingerprint of the key of secrets that it is sealed under.
  sealed_key  bytea CHECK (octet_length(sealed_key) = 60),
  sealed_by   text NOT NULL CHECK (sealed_by ~ '^[a-f0-9]{64}$'),
  key_id      text NOT NULL,
  origin      text NOT NULL
    CHECK (origin IN ('manual','engine-dbos','api-shim','webhook','webhook-ci','external','unknown')),
  created_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
  -- The key is destroyed; then the file was looked for, and is gone.
  erased_at   timestamptz,
  gone_at     timestamptz,
  CHECK ((sealed_key IS NULL) = (erased_at IS NOT NULL)),
  CHECK (gone_at IS NULL OR erased_at IS NOT NULL)
);
CREATE INDEX snapshots_by_tenant ON app.snapshots (tenant_id, created_at DESC, id) WHERE erased_at IS NULL;
CREATE INDEX snapshots_by_live ON app.snapshots (live_id);
CREATE INDEX snapshots_left ON app.snapshots (place) WHERE gone_at IS NULL;

CREATE FUNCTION app.snapshots_guard() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF TG_OP = 'DELETE' OR OLD.gone_at IS NOT NULL
     OR (NEW.id, NEW.tenant_id, NEW.live_id, NEW.run_id, NEW.kind, NEW.name, NEW.template, NEW.place, NEW.bytes,
         NEW.sha256, NEW.sealed_by, NEW.key_id, NEW.origin, NEW.created_at)
        IS DISTINCT FROM
        (OLD.id, OLD.tenant_id, OLD.live_id, OLD.run_id, OLD.kind, OLD.name, OLD.template, OLD.place, OLD.bytes,
         OLD.sha256, OLD.sealed_by, OLD.key_id, OLD.origin, OLD.created_at)
     OR NEW.sealed_key IS NOT NULL AND NEW.sealed_key IS DISTINCT FROM OLD.sealed_key
     OR OLD.erased_at IS NOT NULL AND NEW.erased_at IS DISTINCT FROM OLD.erased_at THEN
    RAISE EXCEPTION 'snapshots % is append-only', OLD.id USING ERRCODE = 'restrict_violation';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER snapshots_guard BEFORE UPDATE OR DELETE ON app.snapshots
  FOR EACH ROW EXECUTE FUNCTION app.snapshots_guard();

-- What is kept counts for its tenant's quota until its key is destroyed. The quota has parts, none of which is negative,
-- so what is given back is taken from as many as it needs.
CREATE FUNCTION app.bytes_freed(p_tenant text, p_bytes bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  part record;
  due  bigint := p_bytes;
BEGIN
  FOR part IN SELECT u.part, u.bytes FROM app.blob_usage_parts u WHERE u.tenant_id = p_tenant AND u.bytes > 0
               ORDER BY u.part FOR UPDATE LOOP
    EXIT WHEN due = 0;
    UPDATE app.blob_usage_parts u SET bytes = u.bytes - least(part.bytes, due)
     WHERE u.tenant_id = p_tenant AND u.part = part.part;
    due := due - least(part.bytes, due);
  END LOOP;
END $$;
CREATE FUNCTION app.snapshot_used() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF TG_OP = 'INSERT' THEN
    PERFORM app.bytes_used(NEW.tenant_id, NEW.bytes);
  ELSE
    PERFORM app.bytes_freed(NEW.tenant_id, NEW.bytes);
  END IF;
  RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER snapshots_use_quota AFTER INSERT ON app.snapshots DEFERRABLE INITIALLY DEFERRED
  FOR EACH ROW EXECUTE FUNCTION app.snapshot_used();
CREATE CONSTRAINT TRIGGER snapshots_free_quota AFTER UPDATE OF erased_at ON app.snapshots DEFERRABLE INITIALLY DEFERRED
  FOR EACH ROW WHEN (OLD.erased_at IS NULL AND NEW.erased_at IS NOT NULL) EXECUTE FUNCTION app.snapshot_used();

-- A sandbox has lives, each the one task of a run of its own. Between two of them it is paused: it has no process, and its
-- files are in `snapshot_id`.
--   running --pause--> paused --resume: the next run--> starting --> running
--                        ^------- that life did not begin ----'
ALTER TABLE app.live_sandboxes
  ADD COLUMN paused_at timestamptz,
  ADD COLUMN snapshot_id text REFERENCES app.snapshots,
  ADD COLUMN pauses boolean NOT NULL DEFAULT false,
  ADD CHECK (paused_at IS NULL OR snapshot_id IS NOT NULL);
CREATE INDEX live_sandboxes_by_snapshot ON app.live_sandboxes (snapshot_id) WHERE ended_at IS NULL;

CREATE OR REPLACE FUNCTION app.live_sandboxes_guard() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF TG_OP = 'DELETE' OR OLD.ended_at IS NOT NULL
     OR (NEW.id, NEW.tenant_id, NEW.key_id, NEW.template, NEW.metadata, NEW.egress, NEW.dedup, NEW.created_at)
        IS DISTINCT FROM
        (OLD.id, OLD.tenant_id, OLD.key_id, OLD.template, OLD.metadata, OLD.egress, OLD.dedup, OLD.created_at)
     -- The next life begins from nothing but its files.
     OR NEW.run_id <> OLD.run_id
        AND (OLD.paused_at IS NULL OR NEW.paused_at IS NOT NULL OR NEW.started_at IS NOT NULL
             OR NEW.snapshot_id IS DISTINCT FROM OLD.snapshot_id)
     OR NEW.run_id = OLD.run_id
        AND (NEW.timeout_ms <> OLD.timeout_ms
             OR OLD.paused_at IS NOT NULL AND NEW.paused_at IS DISTINCT FROM OLD.paused_at
             OR OLD.started_at IS NOT NULL
                AND (NEW.started_at, NEW.token_hash, NEW.executor_id, NEW.sandbox_id, NEW.limits)
                    IS DISTINCT FROM
                    (OLD.started_at, OLD.token_hash, OLD.executor_id, OLD.sandbox_id, OLD.limits)) THEN
    RAISE EXCEPTION 'live_sandboxes % is append-only', OLD.id USING ERRCODE = 'restrict_violation';
  END IF;
  RETURN NEW;
END $$;

-- A life that ends with its files kept leaves a paused sandbox. So does one that was to go on from kept files and did not
-- begin: they are still there.
CREATE FUNCTION app.live_life_ends(p_run text, p_reason text) RETURNS void LANGUAGE sql AS $$
  UPDATE app.live_sandboxes
     SET paused_at = CASE WHEN started_at IS NULL AND snapshot_id IS NOT NULL THEN clock_timestamp() END,
         ended_at = CASE WHEN started_at IS NULL AND snapshot_id IS NOT NULL THEN NULL ELSE clock_timestamp() END,
         end_reason = CASE WHEN started_at IS NULL AND snapshot_id IS NOT NULL THEN NULL ELSE p_reason END
   WHERE run_id = p_run AND ended_at IS NULL AND paused_at IS NULL
$$;
CREATE OR REPLACE FUNCTION app.live_ends_with_task() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM app.live_life_ends(NEW.run_id,
    coalesce(NEW.response->>'cause', CASE WHEN NEW.canceled THEN 'canceled' ELSE 'ended' END));
  RETURN NULL;
END $$;
CREATE OR REPLACE FUNCTION app.live_ends_with_run() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF NOT EXISTS (SELECT 1 FROM app.sbx_runs s WHERE s.run_id = NEW.id AND s.response IS NULL) THEN
    PERFORM app.live_life_ends(NEW.id, coalesce(NEW.error, NEW.status));
  END IF;
  RETURN NULL;
END $$;
