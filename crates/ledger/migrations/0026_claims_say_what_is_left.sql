-- A claim says whether anything is left in the queue: a worker that knows of nothing left need not ask again whenever one
-- of its tasks has ended. What is left, if anything, is one more row, without a workflow.
CREATE FUNCTION app.claim_and_look(p_queue text, p_executor text, p_version text, p_running integer)
RETURNS TABLE (workflow_id text, name text, inputs text) LANGUAGE plpgsql AS $$
BEGIN
  RETURN QUERY SELECT c.workflow_id, c.name, c.inputs FROM app.claim(p_queue, p_executor, p_version, p_running) c;
  IF EXISTS (SELECT 1 FROM dbos.workflow_status s WHERE s.queue_name = p_queue AND s.status = 'ENQUEUED') THEN
    RETURN QUERY SELECT NULL::text, NULL::text, NULL::text;
  END IF;
END $$;
