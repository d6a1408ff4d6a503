-- What a call wrote to its provider's cache, of its input: it has prices of its own.
ALTER TABLE app.model_calls
  ADD COLUMN tokens_written      bigint,
  ADD COLUMN tokens_written_hour bigint;

-- Writes what came of a call, once: the sums go by the difference to what was set aside. `p_tokens` and `p_micros` are
-- NULL where it is not known what was paid: what was set aside stays counted.
CREATE FUNCTION app.model_call_settle(
  p_op_key text, p_outcome text, p_status integer, p_in bigint, p_out bigint, p_cached bigint, p_tokens bigint,
  p_micros bigint, p_answer_hash text, p_answer_bytes bigint, p_first_ms bigint, p_wall_ms bigint, p_why text,
  p_written bigint, p_written_hour bigint)
RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
  v_call app.model_calls;
  v_scope text;
BEGIN
  SELECT * INTO v_call FROM app.model_calls WHERE op_key = p_op_key;
  IF NOT FOUND OR v_call.outcome IS NOT NULL THEN
    RETURN false;
  END IF;
  -- The sums first and in the order of a decision, so that neither waits for the other in a circle.
  FOREACH v_scope IN ARRAY ARRAY['tenant','day','run','sandbox'] LOOP
    PERFORM 1 FROM app.model_usage
      WHERE tenant_id = v_call.tenant_id AND scope = v_scope
        AND key = app.model_scope_key(v_scope, v_call.sandbox_id, v_call.run_id, v_call.provider, v_call.created_at)
      FOR UPDATE;
  END LOOP;
  UPDATE app.model_calls
     SET outcome = p_outcome, status = p_status, tokens_in = p_in, tokens_out = p_out, tokens_cached = p_cached,
         tokens_written = p_written, tokens_written_hour = p_written_hour,
         tokens = coalesce(p_tokens, tokens), micros = coalesce(p_micros, micros), answer_hash = p_answer_hash,
         answer_bytes = p_answer_bytes, first_ms = p_first_ms, wall_ms = p_wall_ms, why = p_why,
         ended_at = clock_timestamp()
   WHERE op_key = p_op_key AND outcome IS NULL;
  IF NOT FOUND THEN
    RETURN false;
  END IF;
  UPDATE app.model_usage u
     SET tokens = u.tokens + coalesce(p_tokens, v_call.tokens) - v_call.tokens,
         micros = u.micros + coalesce(p_micros, v_call.micros) - v_call.micros
    FROM unnest(ARRAY['tenant','day','run','sandbox']) s(scope)
   WHERE u.tenant_id = v_call.tenant_id AND u.scope = s.scope
     AND u.key = app.model_scope_key(s.scope, v_call.sandbox_id, v_call.run_id, v_call.provider, v_call.created_at);
  RETURN true;
END $$;

-- As a binary of before calls it.
CREATE OR REPLACE FUNCTION app.model_call_settle(
  p_op_key text, p_outcome text, p_status integer, p_in bigint, p_out bigint, p_cached bigint, p_tokens bigint,
  p_micros bigint, p_answer_hash text, p_answer_bytes bigint, p_first_ms bigint, p_wall_ms bigint, p_why text)
RETURNS boolean LANGUAGE sql AS $$
  SELECT app.model_call_settle(p_op_key, p_outcome, p_status, p_in, p_out, p_cached, p_tokens, p_micros, p_answer_hash,
                               p_answer_bytes, p_first_ms, p_wall_ms, p_why, NULL::bigint, NULL::bigint)
$$;

-- The tree of a commit that a patch became: with it the commit's id is computed again before it goes on record.
ALTER TABLE app.patch_applies
  ADD COLUMN tree_id text CHECK (tree_id ~ '^([a-f0-9]{40}|[a-f0-9]{64})$');
