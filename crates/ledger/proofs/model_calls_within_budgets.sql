-- Claim: calls of models were allowed within every budget, and the sums are those of the calls
-- A row means: a scope had more calls, or paid or set aside more, than its bound, or its sums are not those of its calls
WITH sent AS (
  SELECT c.*, s.scope, app.model_scope_key(s.scope, c.sandbox_id, c.run_id, c.provider, c.created_at) AS key
    FROM app.model_calls c CROSS JOIN unnest(ARRAY['tenant','day','run','sandbox']) s(scope)
   WHERE c.outcome IS DISTINCT FROM 'refused'),
placed AS (
  SELECT c.*, row_number() OVER w AS place
    FROM sent c WINDOW w AS (PARTITION BY c.tenant_id, c.scope, c.key ORDER BY c.created_at, c.op_key)),
sums AS (
  SELECT tenant_id, scope, key, min(run_id) AS run_id, count(*) AS calls, sum(tokens) AS tokens, sum(micros) AS micros
    FROM sent GROUP BY tenant_id, scope, key),
-- What was paid, and what is set aside where that is not known: nothing is taken off where a provider claims more than
-- was set aside for its call.
held AS (
  SELECT tenant_id, scope, key, min(run_id) AS run_id,
         sum(tokens) AS tokens, sum(micros) AS micros,
         max((limits #>> ARRAY[scope, 'tokens'])::numeric) AS most_tokens,
         max((limits #>> ARRAY[scope, 'micros'])::numeric) AS most_micros,
         bool_and(limits #> ARRAY[scope, 'tokens'] IS NOT NULL) AS tokens_bound,
         bool_and(limits #> ARRAY[scope, 'micros'] IS NOT NULL) AS micros_bound
    FROM sent GROUP BY tenant_id, scope, key)
SELECT p.run_id, p.tenant_id, p.scope, p.key, p.place::numeric AS observed, 'calls' AS metric
  FROM placed p WHERE p.place > (p.limits #>> ARRAY[p.scope, 'calls'])::numeric
 UNION ALL
SELECT h.run_id, h.tenant_id, h.scope, h.key, h.tokens, 'tokens' FROM held h WHERE h.tokens_bound AND h.tokens > h.most_tokens
 UNION ALL
SELECT h.run_id, h.tenant_id, h.scope, h.key, h.micros, 'micros' FROM held h WHERE h.micros_bound AND h.micros > h.most_micros
 UNION ALL
SELECT s.run_id, s.tenant_id, s.scope, s.key, s.calls, 'sums'
  FROM sums s LEFT JOIN app.model_usage u USING (tenant_id, scope, key)
 WHERE (u.calls, u.tokens, u.micros) IS DISTINCT FROM (s.calls, s.tokens::bigint, s.micros::bigint);
