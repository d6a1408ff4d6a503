-- Who leads holds a lease in a row: until when, by this database's clock, and in which term. No lock and no
-- connection stands for it, so that a host that is lost without a word stops leading when its lease is over.
CREATE TABLE app.leader (
  only_one    boolean PRIMARY KEY DEFAULT true CHECK (only_one),
  executor_id text NOT NULL,
  term        bigint NOT NULL CHECK (term >= 1),
  until       timestamptz NOT NULL
);

-- The term in which this executor leads from now on, or still does; NULL while another one leads. A lease
-- that is over, or whose holder is not alive, is free. Who takes it from another begins a new term.
CREATE FUNCTION app.lead(p_executor text, p_lease_ms bigint) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
  v_term bigint;
BEGIN
  -- Without a lock: those who do not lead only read.
  IF EXISTS (SELECT 1 FROM app.leader l JOIN app.executors e ON e.id = l.executor_id AND e.state = 'live'
              WHERE l.executor_id <> p_executor AND l.until >= clock_timestamp()) THEN
    RETURN NULL;
  END IF;
  INSERT INTO app.leader AS l (executor_id, term, until)
  SELECT e.id, 1, clock_timestamp() + make_interval(secs => p_lease_ms / 1000.0)
    FROM app.executors e WHERE e.id = p_executor AND e.state = 'live'
  ON CONFLICT (only_one) DO UPDATE
     SET executor_id = excluded.executor_id, until = excluded.until,
         term = l.term + CASE WHEN l.executor_id = excluded.executor_id THEN 0 ELSE 1 END
   WHERE l.executor_id = excluded.executor_id OR l.until < clock_timestamp()
      OR NOT EXISTS (SELECT 1 FROM app.executors o WHERE o.id = l.executor_id AND o.state = 'live')
  RETURNING l.term INTO v_term;
  RETURN v_term;
END $$;

-- The fence of everything that a leader does: each of its statements asks again.
CREATE FUNCTION app.leads(p_executor text, p_term bigint) RETURNS boolean LANGUAGE sql AS $$
  SELECT EXISTS (SELECT 1 FROM app.leader
                  WHERE executor_id = p_executor AND term = p_term AND until > clock_timestamp())
$$;

-- Puts an executor's workflows back on their queues; how many.
CREATE FUNCTION app.give_back(p_executor text) RETURNS bigint LANGUAGE sql AS $$
  WITH given AS (
    UPDATE dbos.workflow_status
       SET status = 'ENQUEUED', started_at_epoch_ms = NULL, owner_xid = NULL,
           updated_at = app.ms(clock_timestamp())
     WHERE status = 'PENDING' AND executor_id = p_executor AND queue_name IS NOT NULL
    RETURNING queue_name),
  told AS (SELECT pg_notify('cofferdam', 'q:' || queue_name) FROM given GROUP BY queue_name)
  SELECT (SELECT count(*) FROM given) + 0 * (SELECT count(*) FROM told)
$$;

-- Ends an executor; how many workflows it had, NULL where it had ended before.
CREATE FUNCTION app.executor_end(p_executor text, p_state text) RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
  UPDATE app.executors SET state = p_state, ended_at = clock_timestamp()
   WHERE id = p_executor AND state = 'live';
  IF NOT FOUND THEN
    RETURN NULL;
  END IF;
  RETURN app.give_back(p_executor);
END $$;

-- The leader's turn, in one statement, so that a leader that is lost in the middle of it holds nothing:
-- executors that were silent for so long are dead, and what lies under an executor that is not alive goes
-- back to its queue, however it came to be there. `p_dead_after_ms` NULL: nobody is declared dead.
CREATE FUNCTION app.take_over(p_leader text, p_term bigint, p_dead_after_ms bigint)
RETURNS TABLE (executor_id text, is_new boolean, workflows bigint) LANGUAGE plpgsql AS $$
DECLARE
  v_id text;
BEGIN
  IF NOT app.leads(p_leader, p_term) THEN
    RETURN;
  END IF;
  -- A word for the engine's listeners, which send themselves none: one that hears nothing for seconds is on
  -- a connection that is lost, and is closed. It names no waiter.
  PERFORM pg_notify('dbos_notifications_channel', 'cofferdam');
  FOR v_id IN
    UPDATE app.executors e SET state = 'dead', ended_at = clock_timestamp()
     WHERE e.state = 'live' AND e.id <> p_leader
       AND e.heartbeat_at < clock_timestamp() - make_interval(secs => p_dead_after_ms / 1000.0)
    RETURNING e.id
  LOOP
    RETURN QUERY SELECT v_id, true, app.give_back(v_id);
  END LOOP;
  FOR v_id IN
    SELECT DISTINCT w.executor_id FROM dbos.workflow_status w
      LEFT JOIN app.executors e ON e.id = w.executor_id AND e.state = 'live'
     WHERE w.status = 'PENDING' AND w.queue_name IS NOT NULL AND w.executor_id IS NOT NULL AND e.id IS NULL
  LOOP
    RETURN QUERY SELECT v_id, false, app.give_back(v_id);
  END LOOP;
END $$;
