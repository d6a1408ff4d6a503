-- What classes each worker offers, strongest or not; NULL where its version does not say. A submission whose least class none of
-- them has is refused (decision 0147).
ALTER TABLE app.executors ADD COLUMN classes text[];

-- The engine's rows with the word of the design for what waits: the engine writes ENQUEUED, or DELAYED before its time, and no row of
-- it is ever QUEUED. An auditor's `WHERE status = 'QUEUED'` gives the right answer here and an empty one on the engine's own table.
CREATE VIEW app.queue_status AS
  SELECT w.workflow_uuid, w.name, w.queue_name, w.queue_partition_key, w.priority,
         CASE WHEN w.status IN ('ENQUEUED', 'DELAYED') THEN 'QUEUED' ELSE w.status END AS status,
         w.status AS engine_status, w.executor_id, w.created_at, w.updated_at
    FROM dbos.workflow_status w
   WHERE w.queue_name IS NOT NULL;
