-- Whether a run may read any directory of the host: the host's own admin wrote its intent and started
-- it, and nobody else edited its plan. An edit is somebody's input, so the plan that comes of it has the
-- lesser reach of its submitter and its editors; the holder of a reply link has no key, and no reach.
-- A fork has the edits of the runs before it whose consent it inherited.
CREATE FUNCTION app.has_hosts_reach(p_run_id text, p_run_key text, p_intent_key text)
RETURNS boolean LANGUAGE plpgsql STABLE AS $$
BEGIN
  IF NOT (app.is_host_admin(p_run_key) AND app.is_host_admin(p_intent_key)) THEN
    RETURN false;
  END IF;
  RETURN NOT EXISTS (
    WITH RECURSIVE line AS (
      SELECT r.id, r.workflow_id, 0 AS back FROM app.runs r WHERE r.id = p_run_id
      UNION ALL
      SELECT r.id, r.workflow_id, l.back + 1 FROM line l
        JOIN dbos.workflow_status w ON w.workflow_uuid = l.workflow_id
        JOIN app.runs r ON r.workflow_id = w.forked_from),
    asked AS (
      SELECT DISTINCT ON (g.gate_key) g.run_id, g.gate_key FROM line l
        JOIN app.human_gates g ON g.run_id = l.id
       WHERE l.back = 0 OR EXISTS (
               SELECT 1 FROM app.plan_approvals p WHERE p.run_id = p_run_id AND p.gate_key = g.gate_key)
       ORDER BY g.gate_key, l.back)
    SELECT 1 FROM asked a
      JOIN app.gate_edits e ON e.run_id = a.run_id AND e.gate_key = a.gate_key
      JOIN app.human_interactions i ON i.id = e.interaction_id
     WHERE NOT app.is_host_admin(i.key_id));
END $$;
