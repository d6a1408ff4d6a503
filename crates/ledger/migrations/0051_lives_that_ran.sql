-- `first_started_at`: start of a sandbox's first life, kept by later ones. `started_at` belongs to the current life: a resume clears it,
-- so a sandbox that ran, was paused, failed to resume and was killed gave its creation key back as if it had never been made.
ALTER TABLE app.live_sandboxes ADD COLUMN first_started_at timestamptz;

ALTER TABLE app.live_sandboxes DISABLE TRIGGER live_sandboxes_guard;
-- A sandbox whose current life has not started ran before its first pause. Ended sandboxes that gave their key back stay as they were:
-- another sandbox may have that key by now.
UPDATE app.live_sandboxes l
   SET first_started_at = coalesce(l.started_at, (
         SELECT min(s.created_at) FROM app.snapshots s WHERE s.live_id = l.id AND s.kind = 'pause'))
 WHERE l.started_at IS NOT NULL OR l.ended_at IS NULL AND l.snapshot_id IS NOT NULL;
ALTER TABLE app.live_sandboxes ENABLE TRIGGER live_sandboxes_guard;

-- The table sets the column, so that a worker of an earlier version needs to know nothing of it.
CREATE FUNCTION app.live_has_run() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF TG_OP = 'UPDATE' THEN
    NEW.first_started_at := coalesce(OLD.first_started_at, NEW.started_at);
  ELSE
    NEW.first_started_at := NEW.started_at;
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER live_has_run BEFORE INSERT OR UPDATE ON app.live_sandboxes
  FOR EACH ROW EXECUTE FUNCTION app.live_has_run();

CREATE UNIQUE INDEX live_sandboxes_one_a_key ON app.live_sandboxes (tenant_id, dedup)
  WHERE ended_at IS NULL OR first_started_at IS NOT NULL;
DROP INDEX app.live_sandboxes_dedup;
