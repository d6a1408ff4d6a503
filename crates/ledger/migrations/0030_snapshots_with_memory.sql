-- A pause may keep the memory of a sandbox with its files, where its class can: its processes go on from it. Memory lies in a
-- sealed file alone.
ALTER TABLE app.snapshots
  ADD COLUMN memory boolean NOT NULL DEFAULT false,
  ADD CHECK (NOT memory OR kind = 'pause' AND plain IS NULL);

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
