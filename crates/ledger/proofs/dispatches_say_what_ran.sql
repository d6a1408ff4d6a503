-- Claim: a dispatch has the hash of the prompt that its agent was given, and the exit status that its last attempt ended with
-- A row means: a dispatch says that something else was asked, or that it ended otherwise
SELECT m.run_id, d.id, d.prompt_hash, left(encode(sha256(convert_to(g.prompt, 'UTF8')), 'hex'), 16) AS given,
       d.exit_code, l.exit
  FROM app.dispatches d
  JOIN app.dispatch_runs m ON m.dispatch_id = d.id
  JOIN LATERAL (
       SELECT s.request, (s.response ->> 'exit')::bigint AS exit, s.response
         FROM app.sbx_runs s WHERE s.run_id = m.run_id ORDER BY s.attempt DESC LIMIT 1) l ON true
 CROSS JOIN LATERAL (
       SELECT jsonb_path_query_first(l.request, '$.**.filesIn[*] ? (@.path == "/dispatch/prompt.md").inline') #>> '{}' AS prompt) g
 WHERE (g.prompt IS NOT NULL
        AND left(encode(sha256(convert_to(g.prompt, 'UTF8')), 'hex'), 16) IS DISTINCT FROM d.prompt_hash)
    OR (app.dispatch_is_over(d.status) AND l.response IS NOT NULL
        AND d.exit_code IS DISTINCT FROM CASE WHEN l.exit >= 0 THEN l.exit END);
