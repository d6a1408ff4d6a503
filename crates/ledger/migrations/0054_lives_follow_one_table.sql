-- As contracts::life::LifeRow::may_become, with the rules of 0043 on tokens and identity. An update sets at most one instant of a life
-- and clears none; the next life begins with its files only; and `live_may_follow` allows the change of state. The earlier guard let a
-- first life that never ran be paused, a later one that never ran end, a paused sandbox start, a next life begin as one that has ended,
-- and `snapshot_id` change without a pause.
CREATE OR REPLACE FUNCTION app.live_sandboxes_guard() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  v_from text;
  v_to   text;
  v_set  integer;
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
        AND (num_nonnulls(NEW.started_at, NEW.ending_at, NEW.paused_at, NEW.ended_at) > 0
             OR NEW.snapshot_id IS DISTINCT FROM OLD.snapshot_id)
     OR NEW.run_id = OLD.run_id
        AND (NEW.timeout_ms <> OLD.timeout_ms
             OR OLD.started_at IS NOT NULL
                AND (NEW.started_at, NEW.token_hash, NEW.executor_id, NEW.sandbox_id, NEW.limits)
                    IS DISTINCT FROM
                    (OLD.started_at, OLD.token_hash, OLD.executor_id, OLD.sandbox_id, OLD.limits)
             OR OLD.ending_at IS NOT NULL AND NEW.ending_at IS DISTINCT FROM OLD.ending_at
             OR OLD.paused_at IS NOT NULL AND NEW.paused_at IS DISTINCT FROM OLD.paused_at
             OR NEW.snapshot_id IS DISTINCT FROM OLD.snapshot_id AND (OLD.paused_at IS NOT NULL OR NEW.paused_at IS NULL)) THEN
    RAISE EXCEPTION 'live_sandboxes % is append-only', OLD.id USING ERRCODE = 'restrict_violation';
  END IF;
  v_set := num_nonnulls(NEW.started_at, NEW.ending_at, NEW.paused_at, NEW.ended_at)
           - num_nonnulls(OLD.started_at, OLD.ending_at, OLD.paused_at, OLD.ended_at);
  IF NEW.run_id = OLD.run_id AND v_set = 0 THEN
    RETURN NEW;
  END IF;
  v_from := app.live_state_of(OLD);
  v_to := app.live_state_of(NEW);
  IF v_set > 1 OR NEW.run_id <> OLD.run_id AND v_to <> 'requested'
     OR NEW.run_id = OLD.run_id AND OLD.started_at IS NULL AND NEW.started_at IS NOT NULL AND v_to <> 'running'
     OR NOT app.live_may_follow(v_from, v_to, OLD.snapshot_id IS NOT NULL) THEN
    RAISE EXCEPTION 'live_sandboxes % is % and cannot be % next', OLD.id, v_from, v_to USING ERRCODE = 'restrict_violation';
  END IF;
  RETURN NEW;
END $$;
