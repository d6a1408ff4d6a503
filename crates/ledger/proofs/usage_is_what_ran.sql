-- Claim: the usage of each tenant and day is what its sandboxes, tasks, artifacts and calls of models say
-- A row means: the metering table has more or less than what is on record, or was changed
WITH spans AS (
  SELECT s.tenant_id, d.at::date AS day, (d.at = b.midnight)::int AS starts,
         floor(extract(epoch FROM least(b.until, d.at + interval '1 day')) * 1000)
           - floor(extract(epoch FROM greatest(b.began, d.at)) * 1000) AS ms,
         s.mem_mb AS mb
    FROM app.remote_execution_sessions s
   CROSS JOIN LATERAL (
     SELECT coalesce(s.admitted_at, s.created_at) AT TIME ZONE 'UTC' AS began,
            greatest(s.ended_at, coalesce(s.admitted_at, s.created_at)) AT TIME ZONE 'UTC' AS until,
            date_trunc('day', coalesce(s.admitted_at, s.created_at) AT TIME ZONE 'UTC') AS midnight) b
   CROSS JOIN LATERAL generate_series(b.midnight, b.until, interval '1 day') d(at)
   WHERE s.ended_at IS NOT NULL AND s.attestation IS NOT NULL),
ran AS (
  SELECT tenant_id, day, starts, ms AS sandbox_ms, 0 AS core_ms, ms * mb AS memory_mb_ms, 0 AS stored_bytes, 0 AS sent_bytes,
         0 AS model_calls, 0 AS model_tokens, 0 AS model_micros
    FROM spans
   UNION ALL
  SELECT r.tenant_id, (t.finished_at AT TIME ZONE 'UTC')::date, 0, 0, (t.metrics ->> 'cpuMs')::numeric, 0, 0, 0, 0, 0, 0
    FROM app.sbx_runs t JOIN app.runs r ON r.id = t.run_id
   WHERE t.response IS NOT NULL AND (t.metrics ->> 'cpuMs')::numeric > 0 AND t.finished_at IS NOT NULL
   UNION ALL
  SELECT r.tenant_id, (a.created_at AT TIME ZONE 'UTC')::date, 0, 0, 0, 0, a.size, 0, 0, 0, 0
    FROM app.artifacts a JOIN app.runs r ON r.id = a.run_id
   UNION ALL
  SELECT c.tenant_id, (c.ended_at AT TIME ZONE 'UTC')::date, 0, 0, 0, 0, 0, c.request_bytes, 1, c.tokens, c.micros
    FROM app.model_calls c WHERE c.outcome <> 'refused'),
wanted AS (
  SELECT tenant_id, day, sum(starts) AS starts, sum(sandbox_ms) AS sandbox_ms, sum(core_ms) AS core_ms,
         sum(memory_mb_ms) AS memory_mb_ms, sum(stored_bytes) AS stored_bytes, sum(sent_bytes) AS sent_bytes,
         sum(model_calls) AS model_calls, sum(model_tokens) AS model_tokens, sum(model_micros) AS model_micros
    FROM ran GROUP BY tenant_id, day),
metered AS (
  SELECT tenant_id, day, sum(starts) AS starts, sum(sandbox_ms) AS sandbox_ms, sum(core_ms) AS core_ms,
         sum(memory_mb_ms) AS memory_mb_ms, sum(stored_bytes) AS stored_bytes, sum(sent_bytes) AS sent_bytes,
         sum(model_calls) AS model_calls, sum(model_tokens) AS model_tokens, sum(model_micros) AS model_micros
    FROM app.usage_parts GROUP BY tenant_id, day)
SELECT NULL::text AS run_id, tenant_id, day, to_jsonb(m) - 'tenant_id' - 'day' AS metered, to_jsonb(w) - 'tenant_id' - 'day' AS ran
  FROM metered m FULL JOIN wanted w USING (tenant_id, day)
 WHERE (coalesce(m.starts, 0), coalesce(m.sandbox_ms, 0), coalesce(m.core_ms, 0), coalesce(m.memory_mb_ms, 0),
        coalesce(m.stored_bytes, 0), coalesce(m.sent_bytes, 0), coalesce(m.model_calls, 0), coalesce(m.model_tokens, 0),
        coalesce(m.model_micros, 0))
    IS DISTINCT FROM
       (coalesce(w.starts, 0), coalesce(w.sandbox_ms, 0), coalesce(w.core_ms, 0), coalesce(w.memory_mb_ms, 0),
        coalesce(w.stored_bytes, 0), coalesce(w.sent_bytes, 0), coalesce(w.model_calls, 0), coalesce(w.model_tokens, 0),
        coalesce(w.model_micros, 0));
