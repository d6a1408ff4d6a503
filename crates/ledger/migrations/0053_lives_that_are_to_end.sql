-- End of a life, as in 0024. A sandbox with a recorded kill ends here, even if a pause kept its files meanwhile or its resume never
-- started.
CREATE OR REPLACE FUNCTION app.live_life_ends(p_run text, p_reason text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  l app.live_sandboxes;
BEGIN
  -- A concurrent kill waits for this lock; it then reads the task's answer.
  SELECT * INTO l FROM app.live_sandboxes WHERE run_id = p_run AND ended_at IS NULL FOR UPDATE;
  IF NOT FOUND THEN
    RETURN;
  END IF;
  IF l.paused_at IS NOT NULL AND l.ending_at IS NULL THEN
    RETURN;
  END IF;
  IF l.paused_at IS NULL AND l.started_at IS NULL AND l.snapshot_id IS NOT NULL AND l.ending_at IS NULL THEN
    UPDATE app.live_sandboxes SET paused_at = clock_timestamp() WHERE id = l.id;
    RETURN;
  END IF;
  UPDATE app.live_sandboxes
     SET ended_at = clock_timestamp(),
         -- The run's reason is about the pause, or about the resume that never started.
         end_reason = CASE WHEN l.paused_at IS NOT NULL OR l.started_at IS NULL AND l.snapshot_id IS NOT NULL THEN 'killed'
                           ELSE p_reason END
   WHERE id = l.id;
END $$;

-- Records the kill of a tenant's sandbox that is in one of `p_states`. A paused sandbox ends at once, any other with its task's answer.
-- Returns the state before; NULL where the sandbox is missing or in another state.
CREATE FUNCTION app.live_end(p_live text, p_tenant text, p_states text[]) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
  v_life text;
BEGIN
  PERFORM 1 FROM app.live_sandboxes WHERE id = p_live AND tenant_id = p_tenant FOR UPDATE;
  -- A statement of its own: its snapshot has what committed while this one waited for the lock.
  SELECT v.life INTO v_life FROM app.lives v WHERE v.id = p_live AND v.tenant_id = p_tenant AND v.life = ANY (p_states);
  IF v_life = 'paused' THEN
    UPDATE app.live_sandboxes SET ended_at = clock_timestamp(), end_reason = 'killed' WHERE id = p_live;
  ELSIF v_life IS NOT NULL THEN
    UPDATE app.live_sandboxes SET ending_at = clock_timestamp() WHERE id = p_live;
  END IF;
  RETURN v_life;
END $$;

-- As in 0035, with the state of `app.lives`.
CREATE OR REPLACE FUNCTION app.live_resume(p_live jsonb, p_intent jsonb, p_run jsonb, p_opening jsonb, p_executor text,
                                           p_default bigint, p_audit jsonb, OUT over bigint[], OUT rests boolean, OUT claimed boolean)
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan AS $$
DECLARE
  n app.live_sandboxes := jsonb_populate_record(NULL::app.live_sandboxes, p_live);
BEGIN
  over := app.live_over_quota(n.tenant_id, p_default);
  IF over IS NOT NULL THEN
    RETURN;
  END IF;
  PERFORM 1 FROM app.lives l
    WHERE l.id = n.id AND l.tenant_id = n.tenant_id AND l.snapshot_id = n.snapshot_id AND l.life = 'paused' FOR UPDATE;
  rests := FOUND;
  IF NOT rests THEN
    RETURN;
  END IF;
  claimed := app.life_begin(p_intent, p_run, p_opening, p_executor);
  UPDATE app.live_sandboxes l
     SET run_id = n.run_id, timeout_ms = n.timeout_ms, pauses = coalesce(n.pauses, l.pauses), paused_at = NULL,
         started_at = NULL, ends_at = NULL, token_hash = NULL, executor_id = NULL, sandbox_id = NULL, limits = NULL,
         program_failed_at = NULL, program_failed = NULL
   WHERE l.id = n.id;
  INSERT INTO app.audit (tenant_id, key_id, actor, op, target, reason, detail)
  SELECT a.tenant_id, a.key_id, a.actor, a.op, a.target, a.reason, a.detail
    FROM jsonb_populate_record(NULL::app.audit, p_audit) a;
END $$;

-- As in 0045, with the states of `app.lives`. A requested life needs its files even before its task is queued.
CREATE OR REPLACE FUNCTION app.kept_files_lost(p_snapshot text, p_why text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
  PERFORM 1 FROM app.snapshots WHERE id = p_snapshot AND erased_at IS NULL FOR UPDATE;
  IF NOT FOUND OR EXISTS (
       SELECT 1 FROM app.lives l
        WHERE l.snapshot_id = p_snapshot AND l.ended_at IS NULL
          AND (l.life IN ('requested', 'preparing', 'pausing')
               OR l.life = 'ending' AND (l.paused_at IS NOT NULL OR l.started_at IS NULL))) THEN
    RETURN false;
  END IF;
  UPDATE app.live_sandboxes SET ended_at = clock_timestamp(), end_reason = p_why
   WHERE snapshot_id = p_snapshot AND paused_at IS NOT NULL AND ended_at IS NULL;
  DELETE FROM app.template_tags t USING app.template_builds b WHERE b.id = t.build_id AND b.snapshot_id = p_snapshot;
  INSERT INTO app.audit (tenant_id, key_id, actor, op, target, reason, origin)
  SELECT tenant_id, key_id, 'adopt', 'snapshot.lost', id, p_why, 'manual' FROM app.snapshots WHERE id = p_snapshot;
  UPDATE app.snapshots SET sealed_key = NULL, erased_at = clock_timestamp() WHERE id = p_snapshot;
  RETURN true;
END $$;
