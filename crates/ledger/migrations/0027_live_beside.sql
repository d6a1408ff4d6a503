-- A long-lived sandbox that is up is its tenant's to use and does no work of a queue, so it takes no place in one: in the commit
-- of its start its two workflows, its run's and its task's, move to `liveQ`, which has no limits. Until then they are counted
-- as every task and every run is. What a lost worker leaves there is claimed like the rest, and ends the sandbox.
CREATE FUNCTION app.live_steps_aside() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  UPDATE dbos.workflow_status w SET queue_name = 'liveQ'
   WHERE w.workflow_uuid IN (
           SELECT r.workflow_id FROM app.runs r WHERE r.id = NEW.run_id
           UNION ALL
           SELECT s.task_key FROM app.sbx_runs s WHERE s.run_id = NEW.run_id AND s.response IS NULL)
     AND w.queue_name IN ('intentQ','sbxQ') AND w.status IN ('PENDING','ENQUEUED');
  RETURN NULL;
END $$;
CREATE TRIGGER live_steps_aside AFTER UPDATE OF started_at ON app.live_sandboxes
  FOR EACH ROW WHEN (OLD.started_at IS NULL AND NEW.started_at IS NOT NULL)
  EXECUTE FUNCTION app.live_steps_aside();

-- Live: neither paused nor ended. One that is being made is live too.
CREATE INDEX live_sandboxes_live ON app.live_sandboxes (tenant_id) WHERE ended_at IS NULL AND paused_at IS NULL;

-- NULL, or the quota and how many sandboxes of the tenant live, once the quota is reached. The lower of the tenant's own and the
-- host's value holds. Whoever asks holds the tenant's turn until its transaction ends, so that no two count the same place.
CREATE FUNCTION app.live_over_quota(p_tenant text, p_default bigint) RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE
  live  bigint;
  quota bigint;
BEGIN
  PERFORM pg_advisory_xact_lock(hashtextextended('cofferdam.live.' || p_tenant, 0));
  SELECT min(coalesce(v.most, p_default)) INTO quota FROM (
    SELECT (SELECT CASE WHEN c.value <> 'null' THEN (c.value #>> '{}')::bigint END FROM app.dynamic_config c
             WHERE c.tenant_id = t.id AND c.key = 'quota.live_sandboxes' ORDER BY c.version DESC LIMIT 1) AS most, t.id
      FROM unnest(ARRAY['*', p_tenant]) AS t(id)) v
   WHERE v.most IS NOT NULL OR v.id = '*';
  SELECT count(*) INTO live FROM app.live_sandboxes l
   WHERE l.tenant_id = p_tenant AND l.ended_at IS NULL AND l.paused_at IS NULL;
  IF live < quota THEN
    RETURN NULL;
  END IF;
  RETURN ARRAY[quota, live];
END $$;
