-- Claim: changes of a sandbox's network follow each other, each has an outcome once its sandbox rests, and a life begins with the last one
-- A row means: a change began with a network that was not in force, is open though its sandbox ended or is paused, or a resumed sandbox got another network
SELECT c.run_id, c.live_id, c.n, 'began with another network' AS wrong, c.before AS had, app.live_network(c.live_id, l.egress) AS last
  FROM app.live_networks c JOIN app.live_sandboxes l ON l.id = c.live_id
 WHERE c.before IS DISTINCT FROM coalesce(
       (SELECT b.requested FROM app.live_networks b
         WHERE b.live_id = c.live_id AND b.n < c.n AND b.outcome = 'in-force' ORDER BY b.n DESC LIMIT 1), l.egress)
UNION ALL
SELECT c.run_id, c.live_id, c.n, 'is open', c.before, c.requested
  FROM app.live_networks c JOIN app.live_sandboxes l ON l.id = c.live_id
 WHERE c.outcome IS NULL AND (l.ended_at IS NOT NULL OR l.paused_at IS NOT NULL)
UNION ALL
SELECT l.run_id, l.id, NULL, 'began its life with another network', e.policy, b.requested
  FROM app.live_sandboxes l
  JOIN app.egress_policy_snapshots e ON e.run_id = l.run_id AND e.phase = 'exec'
 CROSS JOIN LATERAL (SELECT requested FROM app.live_networks
                      WHERE live_id = l.id AND run_id <> l.run_id AND outcome = 'in-force' ORDER BY n DESC LIMIT 1) b
 WHERE e.policy <> jsonb_build_array(b.requested);
