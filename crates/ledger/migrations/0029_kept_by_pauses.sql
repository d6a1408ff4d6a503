-- A pause may keep the layer of its sandbox as it is, in memory, and answer before its files are sealed. Then the row names
-- the file system of that layer, and `sealed_at` is missing until a file has them, sealed, and that file system has ended.
-- `bytes` is what the files take at most before, and what the file has after. Whoever is to go on from a layer that is lost
-- before it is sealed has ended.
--
-- A pause may also keep the memory of a sandbox, where its class can: its processes go on from it. Memory lies in a sealed file
-- alone.
ALTER TABLE app.snapshots
  ADD COLUMN plain text CHECK (plain LIKE 'file system %'),
  ADD COLUMN sealed_at timestamptz,
  ADD COLUMN memory boolean NOT NULL DEFAULT false,
  ADD CHECK (NOT memory OR kind = 'pause' AND plain IS NULL);
ALTER TABLE app.snapshots DISABLE TRIGGER snapshots_guard;
UPDATE app.snapshots SET sealed_at = created_at;
ALTER TABLE app.snapshots ENABLE TRIGGER snapshots_guard;
ALTER TABLE app.snapshots
  ALTER COLUMN sha256 DROP NOT NULL,
  ADD CHECK ((sha256 IS NULL) = (sealed_at IS NULL)),
  ADD CHECK (sealed_at IS NOT NULL OR plain IS NOT NULL AND kind = 'pause');
CREATE INDEX snapshots_unsealed ON app.snapshots (place) WHERE sealed_at IS NULL AND erased_at IS NULL;

CREATE OR REPLACE FUNCTION app.snapshots_guard() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF TG_OP = 'DELETE' OR OLD.gone_at IS NOT NULL
     OR (NEW.id, NEW.tenant_id, NEW.live_id, NEW.run_id, NEW.kind, NEW.name, NEW.template, NEW.place, NEW.plain, NEW.memory,
         NEW.sealed_by, NEW.key_id, NEW.origin, NEW.created_at)
        IS DISTINCT FROM
        (OLD.id, OLD.tenant_id, OLD.live_id, OLD.run_id, OLD.kind, OLD.name, OLD.template, OLD.place, OLD.plain, OLD.memory,
         OLD.sealed_by, OLD.key_id, OLD.origin, OLD.created_at)
     -- Sealed once, and not what is erased.
     OR (OLD.sealed_at IS NOT NULL OR OLD.erased_at IS NOT NULL)
        AND (NEW.sealed_at, NEW.sha256, NEW.bytes) IS DISTINCT FROM (OLD.sealed_at, OLD.sha256, OLD.bytes)
     OR NEW.sealed_at IS NULL AND NEW.bytes <> OLD.bytes
     OR NEW.sealed_key IS NOT NULL AND NEW.sealed_key IS DISTINCT FROM OLD.sealed_key
     OR OLD.erased_at IS NOT NULL AND NEW.erased_at IS DISTINCT FROM OLD.erased_at THEN
    RAISE EXCEPTION 'snapshots % is append-only', OLD.id USING ERRCODE = 'restrict_violation';
  END IF;
  RETURN NEW;
END $$;

-- The quota counts what the file has once there is one.
CREATE FUNCTION app.snapshot_sealed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM app.bytes_freed(NEW.tenant_id, OLD.bytes);
  PERFORM app.bytes_used(NEW.tenant_id, NEW.bytes);
  RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER snapshots_seal_quota AFTER UPDATE OF sealed_at ON app.snapshots DEFERRABLE INITIALLY DEFERRED
  FOR EACH ROW WHEN (OLD.sealed_at IS NULL AND NEW.sealed_at IS NOT NULL) EXECUTE FUNCTION app.snapshot_sealed();
