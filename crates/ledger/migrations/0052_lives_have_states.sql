-- States of a long-lived sandbox, computed from its row, its run's session and task, and its worker. contracts/src/life.rs defines them;
-- the test `lives` compares every pair of states and of rows.

-- When the tenant's kill was recorded. It is never cleared, and only the end follows.
ALTER TABLE app.live_sandboxes ADD COLUMN ending_at timestamptz;

-- As contracts::life::LifeRow::state; NULL counts as false.
CREATE FUNCTION app.live_state(p_started boolean, p_to_end boolean, p_paused boolean, p_ended boolean, p_begun boolean, p_open boolean,
                               p_held boolean)
RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  SELECT CASE WHEN p_ended THEN 'ended'
              WHEN p_to_end THEN 'ending'
              WHEN p_paused THEN CASE WHEN p_open THEN 'pausing' ELSE 'paused' END
              WHEN p_started THEN CASE WHEN p_held THEN 'running' ELSE 'ending' END
              WHEN p_begun THEN 'preparing'
              ELSE 'requested' END
$$;

-- As contracts::life::may_follow; `p_later`: the life began with the files of an earlier pause.
CREATE FUNCTION app.live_may_follow(p_from text, p_to text, p_later boolean)
RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  SELECT CASE p_from
           WHEN 'requested' THEN p_to IN ('preparing', 'ending') OR p_to = CASE WHEN p_later THEN 'paused' ELSE 'ended' END
           WHEN 'preparing' THEN p_to IN ('running', 'ending') OR p_to = CASE WHEN p_later THEN 'paused' ELSE 'ended' END
           WHEN 'running' THEN p_to IN ('pausing', 'ending', 'ended')
           WHEN 'pausing' THEN p_to IN ('running', 'paused', 'ending')
           WHEN 'paused' THEN p_to IN ('requested', 'ended')
           WHEN 'ending' THEN p_to = 'ended'
           ELSE false END
$$;

-- Every sandbox with its state, `life`. PostgreSQL inlines `live_state`, so a row costs only the lookups that its state needs. They are
-- scalar subqueries: of `EXISTS` the planner may hash whole tables of history.
CREATE VIEW app.lives AS
  SELECT l.*, app.live_state(
           l.started_at IS NOT NULL, l.ending_at IS NOT NULL, l.paused_at IS NOT NULL, l.ended_at IS NOT NULL,
           (SELECT true FROM app.remote_execution_sessions x WHERE x.run_id = l.run_id LIMIT 1),
           (SELECT true FROM app.sbx_runs s WHERE s.run_id = l.run_id AND s.response IS NULL LIMIT 1),
           (SELECT e.state = 'live' FROM app.executors e WHERE e.id = l.executor_id)
             AND (SELECT x.ended_at IS NULL FROM app.remote_execution_sessions x WHERE x.sandbox_id = l.sandbox_id)
         ) AS life
    FROM app.live_sandboxes l;

-- The state that `app.lives` would show for this row, for a trigger whose row is not in the table yet.
CREATE FUNCTION app.live_state_of(l app.live_sandboxes) RETURNS text LANGUAGE sql STABLE AS $$
  SELECT app.live_state(
           l.started_at IS NOT NULL, l.ending_at IS NOT NULL, l.paused_at IS NOT NULL, l.ended_at IS NOT NULL,
           (SELECT true FROM app.remote_execution_sessions x WHERE x.run_id = l.run_id LIMIT 1),
           (SELECT true FROM app.sbx_runs s WHERE s.run_id = l.run_id AND s.response IS NULL LIMIT 1),
           (SELECT e.state = 'live' FROM app.executors e WHERE e.id = l.executor_id)
             AND (SELECT x.ended_at IS NULL FROM app.remote_execution_sessions x WHERE x.sandbox_id = l.sandbox_id))
$$;
