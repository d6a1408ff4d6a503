-- Claim: all fan-out work names its tenant's partition
-- A row means: a task is outside sbxQ and, of a long-lived sandbox that was made, outside liveQ, or in no or another run's partition
SELECT r.id AS run_id, w.workflow_uuid, w.queue_partition_key, r.partition_key
  FROM dbos.workflow_status w
  JOIN app.sbx_runs s ON s.task_key = w.workflow_uuid
  JOIN app.runs r ON r.id = s.run_id
 WHERE w.status <> 'MAX_RECOVERY_ATTEMPTS_EXCEEDED'
   AND (w.queue_name IS DISTINCT FROM CASE
         WHEN w.queue_name = 'liveQ' AND r.recipe_id = 'sandbox'
          AND EXISTS (SELECT 1 FROM app.remote_execution_sessions x WHERE x.task_key = w.workflow_uuid)
         THEN 'liveQ' ELSE 'sbxQ' END
     OR coalesce(btrim(w.queue_partition_key), '') = ''
     OR w.queue_partition_key <> r.partition_key);
