-- Claim: all fan-out work names its tenant's partition
-- A row means: work in sbxQ belongs to no partition, or to another run's
SELECT r.id AS run_id, w.workflow_uuid, w.queue_partition_key, r.partition_key
  FROM dbos.workflow_status w
  JOIN app.sbx_runs s ON s.task_key = w.workflow_uuid
  JOIN app.runs r ON r.id = s.run_id
 WHERE w.status <> 'MAX_RECOVERY_ATTEMPTS_EXCEEDED'
   AND (w.queue_name IS DISTINCT FROM 'sbxQ'
     OR coalesce(btrim(w.queue_partition_key), '') = ''
     OR w.queue_partition_key <> r.partition_key);
