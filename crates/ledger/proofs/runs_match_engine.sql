-- Claim: a terminal run and its workflow agree
-- A row means: the ledger says one thing and the engine another
SELECT r.id AS run_id, r.status, w.status AS engine
  FROM app.runs r
  LEFT JOIN dbos.workflow_status w ON w.workflow_uuid = r.workflow_id
 WHERE w.workflow_uuid IS NULL
    OR (r.status = 'succeeded'
        AND w.status NOT IN ('SUCCESS','PENDING','ENQUEUED'))
    OR (r.status IN ('failed','retries_exceeded')
        AND w.status NOT IN ('ERROR','PENDING','ENQUEUED','MAX_RECOVERY_ATTEMPTS_EXCEEDED'))
    OR (r.status = 'canceled'
        AND w.status <> 'CANCELLED')
    OR (NOT app.is_over(r.status)
        AND w.status IN ('SUCCESS','ERROR','CANCELLED','MAX_RECOVERY_ATTEMPTS_EXCEEDED'))
    -- The ledger ends a run before the engine does, in the same step. A worker that stops in between gives the workflow back to its
    -- queue, where it waits for the next worker.
    OR (r.status IN ('succeeded','failed','retries_exceeded')
        AND w.status IN ('PENDING','ENQUEUED')
        AND r.finished_at < clock_timestamp() - interval '1 minute'
        AND (w.status = 'PENDING' OR EXISTS (
             SELECT 1 FROM app.executors e
              WHERE e.state = 'live' AND e.started_at < clock_timestamp() - interval '1 minute')));
