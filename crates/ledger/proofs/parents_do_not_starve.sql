-- Claim: no parent waits in its queue while its queue's workers are idle and its tenant has less than its share
-- A row means: a run has been queued for over a minute although workers are alive and its tenant's share is free
SELECT r.id AS run_id, w.workflow_uuid, w.created_at
  FROM dbos.workflow_status w
  JOIN app.runs r ON r.workflow_id = w.workflow_uuid
 WHERE w.queue_name IN ('intentQ', 'liveQ')
   AND w.status = 'ENQUEUED'
   AND w.updated_at < app.ms(clock_timestamp()) - 60000
   AND EXISTS (
       SELECT 1 FROM app.executors e
        WHERE e.state = 'live'
          AND e.heartbeat_at > clock_timestamp() - interval '10 seconds'
          AND e.started_at < clock_timestamp() - interval '1 minute')
   AND (w.queue_name = 'liveQ' OR coalesce(w.queue_partition_key, '') NOT IN (
       SELECT coalesce(b.queue_partition_key, '')
         FROM dbos.workflow_status b
         JOIN app.runs o ON o.workflow_id = b.workflow_uuid AND o.status <> 'waiting_input'
        WHERE b.queue_name = 'intentQ' AND b.status = 'PENDING'
        GROUP BY 1
       HAVING count(*) >= (
              SELECT coalesce(q.partition_concurrency, 2147483647)
                FROM dbos.queues q WHERE q.name = 'intentQ')));
