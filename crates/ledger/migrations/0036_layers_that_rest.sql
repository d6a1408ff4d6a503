-- The layer of a pause may rest in memory once its files are sealed, for a resume that comes soon. `sealed_at` says that a file
-- has them, on the disk; `plain_ended_at` that the layer is not held for this snapshot any more, and `plain_end` why: the kernel
-- has said that its file system ended, the next life of its sandbox has it, or the process that held it has ended. Of those that
-- were gone before there was this column it is not recorded.
ALTER TABLE app.snapshots
  ADD COLUMN plain_ended_at timestamptz,
  ADD COLUMN plain_end text CHECK (plain_end IN ('ended', 'next-life', 'process-ended', 'not-recorded')),
  ADD CHECK ((plain_ended_at IS NULL) = (plain_end IS NULL)),
  ADD CHECK (plain_end IS NULL OR plain IS NOT NULL AND (plain_end = 'next-life' OR sealed_at IS NOT NULL OR erased_at IS NOT NULL));
ALTER TABLE app.snapshots DISABLE TRIGGER snapshots_guard;
-- Until now the first was written after the second.
UPDATE app.snapshots SET plain_ended_at = COALESCE(sealed_at, gone_at), plain_end = CASE WHEN sealed_at IS NULL THEN 'not-recorded' ELSE 'ended' END
 WHERE plain IS NOT NULL AND COALESCE(sealed_at, gone_at) IS NOT NULL;
ALTER TABLE app.snapshots ENABLE TRIGGER snapshots_guard;
CREATE INDEX snapshots_resting ON app.snapshots (place) WHERE plain IS NOT NULL AND plain_ended_at IS NULL;

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
     OR OLD.plain_ended_at IS NOT NULL
        AND (NEW.plain_ended_at, NEW.plain_end) IS DISTINCT FROM (OLD.plain_ended_at, OLD.plain_end)
     OR NEW.sealed_key IS NOT NULL AND NEW.sealed_key IS DISTINCT FROM OLD.sealed_key
     OR OLD.erased_at IS NOT NULL AND NEW.erased_at IS DISTINCT FROM OLD.erased_at THEN
    RAISE EXCEPTION 'snapshots % is append-only', OLD.id USING ERRCODE = 'restrict_violation';
  END IF;
  RETURN NEW;
END $$;
