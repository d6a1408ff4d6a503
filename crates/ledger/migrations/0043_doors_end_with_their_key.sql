-- Tokens of a sandbox end with the key that they were made for. A resume by another key then makes new ones, which are the
-- door's from there on.
ALTER TABLE app.live_sandboxes
  ADD COLUMN door_key_id text CHECK (door_key_id <> ''),
  ADD CHECK (door_key_id IS NULL OR door_hash IS NOT NULL);

CREATE OR REPLACE FUNCTION app.live_sandboxes_guard() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF TG_OP = 'DELETE' OR OLD.ended_at IS NOT NULL
     OR (NEW.id, NEW.tenant_id, NEW.key_id, NEW.template, NEW.metadata, NEW.egress, NEW.dedup, NEW.created_at, NEW.resumes)
        IS DISTINCT FROM
        (OLD.id, OLD.tenant_id, OLD.key_id, OLD.template, OLD.metadata, OLD.egress, OLD.dedup, OLD.created_at, OLD.resumes)
     -- No other token opens a later life, unless the key of the first one is revoked.
     OR OLD.door_hash IS NOT NULL
        AND (NEW.door_hash, NEW.traffic_hash) IS DISTINCT FROM (OLD.door_hash, OLD.traffic_hash)
        AND NOT EXISTS (SELECT 1 FROM app.api_keys k
                         WHERE k.key_id = coalesce(OLD.door_key_id, OLD.key_id) AND k.revoked_at IS NOT NULL)
     OR OLD.door_hash IS NOT NULL AND (NEW.door_hash, NEW.traffic_hash) IS NOT DISTINCT FROM (OLD.door_hash, OLD.traffic_hash)
        AND coalesce(NEW.door_key_id, NEW.key_id) <> coalesce(OLD.door_key_id, OLD.key_id)
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
