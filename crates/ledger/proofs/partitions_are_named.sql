-- Claim: all fan-out work names its tenant's partition
-- A row means: a task is outside sbxQ (or liveQ, of a sandbox that started), or belongs to no partition, or to another run's
SELECT r.id AS run_id, w.workflow_uuid, w.queue_partition_key, r.partition_key
  FROM dbos.workflow_status w
  JOIN app.sbx_runs s ON s.task_key = w.workflow_uuid
  JOIN app.runs r ON r.id = s.run_id
 WHERE w.status <> 'MAX_RECOVERY_ATTEMPTS_EXCEEDED'
   AND (w.queue_name IS DISTINCT FROM CASE
         WHEN EXISTS (SELECT 1 FROM app.live_sandboxes l WHERE l.run_id = r.id AND l.started_at IS NOT NULL)
          AND w.queue_name = 'liveQ' THEN 'liveQ' ELSE 'sbxQ' END
     OR coalesce(btrim(w.queue_partition_key), '') = ''
     OR w.queue_partition_key <> r.partition_key);
