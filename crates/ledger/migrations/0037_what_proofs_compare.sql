-- The canonical form of JSON (RFC 8785), so that a proof computes again what a recipe's hash and a task's key are made of.

CREATE FUNCTION app.canonical_number(p_value numeric) RETURNS text LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE AS $$
DECLARE
  v_text    text;
  v_decimal numeric;
BEGIN
  IF p_value = trunc(p_value) AND abs(p_value) < 9007199254740992 THEN
    RETURN trunc(p_value)::text;
  END IF;
  -- The shortest text that gives the same double again, as ECMAScript writes it.
  v_text := p_value::float8::text;
  v_decimal := v_text::numeric;
  IF abs(v_decimal) >= 1e-6 AND abs(v_decimal) < 1e21 THEN
    RETURN trim_scale(v_decimal)::text;
  END IF;
  RETURN regexp_replace(v_text, 'e([+-])0+', 'e\1');
END $$;

CREATE FUNCTION app.canonical(p_value jsonb) RETURNS text LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE AS $$
BEGIN
  CASE jsonb_typeof(p_value)
    WHEN 'object' THEN
      -- By UTF-16 units: what lies beyond the first plane sorts as a surrogate, before U+E000.
      RETURN '{' || coalesce((
        SELECT string_agg(to_json(e.key)::text || ':' || app.canonical(e.value), ','
                          ORDER BY regexp_replace(e.key, U&'([\+010000-\+10FFFF])', U&'\D7FF' || '\1', 'g') COLLATE "C")
          FROM jsonb_each(p_value) e), '') || '}';
    WHEN 'array' THEN
      RETURN '[' || coalesce((
        SELECT string_agg(app.canonical(e.value), ',' ORDER BY e.n)
          FROM jsonb_array_elements(p_value) WITH ORDINALITY e(value, n)), '') || ']';
    WHEN 'number' THEN RETURN app.canonical_number((p_value #>> '{}')::numeric);
    ELSE RETURN p_value::text;
  END CASE;
END $$;

CREATE FUNCTION app.canonical_digest(p_value jsonb) RETURNS text LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$
  SELECT encode(sha256(convert_to(app.canonical(p_value), 'UTF8')), 'hex')
$$;

-- What nothing else on record says again: that a run, an audit row, an approval, evidence, a sandbox, a snapshot was there, and
-- whose a key was. The leader seals such rows a moment after they were written: a chain for each kind, whose links hash the row
-- and the link before. The rows' own writers wait for nothing.
CREATE TABLE app.ledger_chain (
  kind        text NOT NULL,
  seq         bigint NOT NULL CHECK (seq >= 1),
  row_key     text NOT NULL,
  run_id      text,
  tenant_id   text,
  written_at  timestamptz NOT NULL,
  row_digest  text NOT NULL CHECK (row_digest ~ '^[a-f0-9]{64}$'),
  before      text NOT NULL,
  digest      text NOT NULL CHECK (digest ~ '^[a-f0-9]{64}$'),
  sealed_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (kind, seq),
  UNIQUE (kind, row_key)
);
CREATE TRIGGER ledger_chain_append_only BEFORE UPDATE OR DELETE ON app.ledger_chain
  FOR EACH ROW EXECUTE FUNCTION app.refuse_change();

-- What is sealed of each kind: what never changes in its rows. Times as milliseconds, since their text depends on who reads it.
CREATE VIEW app.chained AS
  SELECT 'run' AS kind, r.id AS row_key, r.id AS run_id, r.tenant_id, r.created_at AS written_at,
         jsonb_build_array(r.id, r.intent_id, r.workflow_id, r.tenant_id, r.recipe_id, r.recipe_v, r.recipe_hash, r.key_id,
                           r.origin, app.ms(r.created_at)) AS content
    FROM app.runs r
  UNION ALL
  SELECT 'audit', a.id::text, NULL, a.tenant_id, a.created_at,
         jsonb_build_array(a.id, a.tenant_id, a.key_id, a.actor, a.op, a.target, a.reason, a.detail, a.origin, app.ms(a.created_at))
    FROM app.audit a
  UNION ALL
  SELECT 'approval', p.run_id || ' ' || p.round, p.run_id, r.tenant_id, p.approved_at,
         jsonb_build_array(p.run_id, p.round, p.intent_id, p.gate_key, p.plan_digest, p.sandbox_digest, p.egress_digest,
                           p.image_digest, p.budget_digest, p.approved_by, p.key_id, p.notes, p.origin, app.ms(p.approved_at))
    FROM app.plan_approvals p LEFT JOIN app.runs r ON r.id = p.run_id
  UNION ALL
  SELECT 'wipe', w.sandbox_id || ' ' || w.look, w.run_id, s.tenant_id, w.created_at,
         jsonb_build_array(w.sandbox_id, w.look, w.run_id, w.task_key, w.terminal_state, w.wipe_status, w.reason, w.method,
                           w.evidence, w.origin, app.ms(w.wipe_timestamp), app.ms(w.created_at))
    FROM app.secure_wipe_evidence w LEFT JOIN app.remote_execution_sessions s ON s.sandbox_id = w.sandbox_id
  UNION ALL
  SELECT 'key', k.key_id, NULL, k.tenant_id, k.created_at,
         jsonb_build_array(k.key_id, k.key_hash, k.tenant_id, k.roles, k.groups, app.ms(k.created_at))
    FROM app.api_keys k
  UNION ALL
  SELECT 'sandbox', l.id, NULL, l.tenant_id, l.created_at,
         jsonb_build_array(l.id, l.tenant_id, l.key_id, l.template, app.ms(l.created_at))
    FROM app.live_sandboxes l
  UNION ALL
  SELECT 'snapshot', s.id, s.run_id, s.tenant_id, s.created_at,
         jsonb_build_array(s.id, s.tenant_id, s.live_id, s.run_id, s.kind, s.key_id, app.ms(s.created_at))
    FROM app.snapshots s
  UNION ALL
  SELECT 'erasure', s.id, s.run_id, s.tenant_id, s.erased_at, jsonb_build_array(s.id, app.ms(s.erased_at))
    FROM app.snapshots s WHERE s.erased_at IS NOT NULL;

-- What was written lately is found by its time.
CREATE INDEX runs_by_time ON app.runs USING brin (created_at);
CREATE INDEX audit_by_time ON app.audit USING brin (created_at);
CREATE INDEX approvals_by_time ON app.plan_approvals USING brin (approved_at);
CREATE INDEX wipe_by_time ON app.secure_wipe_evidence USING brin (created_at);
CREATE INDEX live_sandboxes_by_time ON app.live_sandboxes USING brin (created_at);
CREATE INDEX snapshots_by_time ON app.snapshots USING brin (created_at);

CREATE FUNCTION app.row_digest(p_content jsonb) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  SELECT encode(sha256(convert_to(p_content::text, 'UTF8')), 'hex')
$$;
CREATE FUNCTION app.chain_digest(p_kind text, p_seq bigint, p_key text, p_row text, p_before text) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  SELECT encode(sha256(convert_to(jsonb_build_array(p_kind, p_seq, p_key, p_row, p_before)::text, 'UTF8')), 'hex')
$$;

-- Seals what was written since the last time, at most so many rows; how many it were. A transaction that takes longer than ten
-- minutes may leave a row that nobody seals. Where another seals at this moment, that one does it.
CREATE FUNCTION app.chain_seal(p_most bigint) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
  v_row    record;
  v_seq    bigint;
  v_before text;
  v_kind   text;
  v_since  timestamptz;
  v_count  bigint := 0;
BEGIN
  IF NOT pg_try_advisory_xact_lock(hashtextextended('cofferdam.chain', 0)) THEN
    RETURN 0;
  END IF;
  FOREACH v_kind IN ARRAY ARRAY['run', 'audit', 'approval', 'wipe', 'key', 'sandbox', 'snapshot', 'erasure'] LOOP
    SELECT c.seq, c.digest, c.written_at - interval '10 minutes' INTO v_seq, v_before, v_since
      FROM app.ledger_chain c WHERE c.kind = v_kind ORDER BY c.seq DESC LIMIT 1;
    IF NOT FOUND THEN
      v_seq := 0;
      v_before := '';
      v_since := '-infinity';
    END IF;
    FOR v_row IN
      SELECT d.row_key, d.run_id, d.tenant_id, d.written_at, app.row_digest(d.content) AS digest
        FROM app.chained d
       WHERE d.kind = v_kind AND d.written_at >= v_since
         AND NOT EXISTS (SELECT 1 FROM app.ledger_chain c WHERE c.kind = v_kind AND c.row_key = d.row_key)
       ORDER BY d.written_at, d.row_key LIMIT p_most - v_count LOOP
      v_seq := v_seq + 1;
      INSERT INTO app.ledger_chain (kind, seq, row_key, run_id, tenant_id, row_digest, written_at, before, digest)
      VALUES (v_kind, v_seq, v_row.row_key, v_row.run_id, v_row.tenant_id, v_row.digest, v_row.written_at, v_before,
              app.chain_digest(v_kind, v_seq, v_row.row_key, v_row.digest, v_before))
      RETURNING digest INTO v_before;
      v_count := v_count + 1;
    END LOOP;
  END LOOP;
  RETURN v_count;
END $$;
