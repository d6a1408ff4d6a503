-- Providers of models as a tenant's operators configured them; the newest version counts, and one without a
-- configuration is removed. `private`: the host's own admin wrote it, so it may lie on an address of this host.
CREATE TABLE app.models (
  tenant_id  text NOT NULL CHECK (tenant_id <> ''),
  name       text NOT NULL CHECK (name <> ''),
  version    integer NOT NULL CHECK (version >= 1),
  provider   jsonb,
  private    boolean NOT NULL DEFAULT false,
  actor      text NOT NULL,
  created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (tenant_id, name, version)
);
CREATE TRIGGER models_append_only BEFORE UPDATE OR DELETE ON app.models
  FOR EACH ROW EXECUTE FUNCTION app.refuse_change();

-- One row a call of a provider, written before the request is sent. `tokens` and `micros` are what counts against
-- budgets: what was set aside, until the answer says less, and for good where it is not known what was paid.
-- `limits`: the bounds in force when it was allowed, by scope, grants included.
CREATE TABLE app.model_calls (
  op_key           text PRIMARY KEY CHECK (op_key ~ '^[a-f0-9]{64}$'),
  run_id           text NOT NULL REFERENCES app.runs,
  task_key         text NOT NULL REFERENCES app.sbx_runs (task_key),
  sandbox_id       text NOT NULL REFERENCES app.remote_execution_sessions,
  n                bigint NOT NULL CHECK (n >= 1),
  tenant_id        text NOT NULL,
  agent            text,
  provider         text,
  provider_version integer,
  model            text,
  protocol         text NOT NULL CHECK (protocol IN ('openai-chat','openai-responses','anthropic-messages')),
  request_hash     text NOT NULL CHECK (request_hash ~ '^[a-f0-9]{64}$'),
  request_bytes    bigint NOT NULL,
  limits           jsonb NOT NULL,
  reserved_tokens  bigint NOT NULL,
  reserved_micros  bigint NOT NULL,
  tokens           bigint NOT NULL CHECK (tokens >= 0),
  micros           bigint NOT NULL CHECK (micros >= 0),
  tokens_in        bigint,
  tokens_out       bigint,
  tokens_cached    bigint,
  answer_hash      text CHECK (answer_hash ~ '^[a-f0-9]{64}$'),
  answer_bytes     bigint,
  status           integer,
  outcome          text CHECK (outcome IN ('ok','refused','provider_error','unreachable','cut','unknown')),
  first_ms         bigint,
  wall_ms          bigint,
  why              text,
  origin           text NOT NULL DEFAULT 'engine-dbos'
    CHECK (origin IN ('manual','engine-dbos','api-shim','webhook','webhook-ci','external','unknown')),
  created_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
  ended_at         timestamptz,
  UNIQUE (sandbox_id, n),
  CHECK ((outcome IS NULL) = (ended_at IS NULL)),
  CHECK ((tokens_in IS NULL) = (tokens_out IS NULL)),
  CHECK (outcome IS DISTINCT FROM 'refused' OR tokens + micros + reserved_tokens + reserved_micros = 0)
);
CREATE INDEX model_calls_by_run ON app.model_calls (run_id);
CREATE INDEX model_calls_open ON app.model_calls (sandbox_id) WHERE outcome IS NULL;

CREATE FUNCTION app.model_calls_guard() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF TG_OP = 'DELETE' OR OLD.outcome IS NOT NULL OR NEW.outcome IS NULL
     OR (NEW.op_key, NEW.run_id, NEW.task_key, NEW.sandbox_id, NEW.n, NEW.tenant_id, NEW.request_hash, NEW.limits,
         NEW.reserved_tokens, NEW.reserved_micros)
        IS DISTINCT FROM
        (OLD.op_key, OLD.run_id, OLD.task_key, OLD.sandbox_id, OLD.n, OLD.tenant_id, OLD.request_hash, OLD.limits,
         OLD.reserved_tokens, OLD.reserved_micros) THEN
    RAISE EXCEPTION 'model_calls % is append-only', OLD.op_key USING ERRCODE = 'restrict_violation';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER model_calls_guard BEFORE UPDATE OR DELETE ON app.model_calls
  FOR EACH ROW EXECUTE FUNCTION app.model_calls_guard();

-- Bodies, where a recipe asks for them: redacted, and cut at a bound.
CREATE TABLE app.model_bodies (
  op_key     text NOT NULL REFERENCES app.model_calls,
  side       text NOT NULL CHECK (side IN ('request','answer')),
  body       text NOT NULL,
  created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (op_key, side)
);
CREATE TRIGGER model_bodies_append_only BEFORE UPDATE OR DELETE ON app.model_bodies
  FOR EACH ROW EXECUTE FUNCTION app.refuse_change();

-- What the calls of a scope took so far: the sums of their rows, kept beside them so that a decision reads four rows.
CREATE TABLE app.model_usage (
  tenant_id text NOT NULL,
  scope     text NOT NULL CHECK (scope IN ('sandbox','run','day','tenant')),
  key       text NOT NULL,
  calls     bigint NOT NULL DEFAULT 0,
  tokens    bigint NOT NULL DEFAULT 0,
  micros    bigint NOT NULL DEFAULT 0,
  first_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (tenant_id, scope, key)
);

-- The key of a scope's sums.
CREATE FUNCTION app.model_scope_key(p_scope text, p_sandbox text, p_run text, p_provider text, p_at timestamptz)
RETURNS text LANGUAGE sql IMMUTABLE AS $$
  SELECT CASE p_scope WHEN 'sandbox' THEN p_sandbox WHEN 'run' THEN p_run WHEN 'tenant' THEN p_provider
                      ELSE p_provider || '/' || to_char(p_at AT TIME ZONE 'UTC', 'YYYY-MM-DD') END
$$;

-- A person granted more of a sandbox's budget; each grant is a decision at a gate.
CREATE TABLE app.model_asks (
  run_id     text NOT NULL REFERENCES app.runs,
  task_key   text NOT NULL CHECK (task_key ~ '^[a-f0-9]{64}$'),
  n          integer NOT NULL CHECK (n >= 1),
  gate_key   text NOT NULL,
  asked      jsonb NOT NULL,
  created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (task_key, n),
  UNIQUE (run_id, gate_key)
);
CREATE TRIGGER model_asks_append_only BEFORE UPDATE OR DELETE ON app.model_asks
  FOR EACH ROW EXECUTE FUNCTION app.refuse_change();

CREATE TABLE app.model_grants (
  run_id         text NOT NULL REFERENCES app.runs,
  task_key       text NOT NULL,
  n              integer NOT NULL,
  gate_key       text NOT NULL,
  interaction_id bigint NOT NULL UNIQUE REFERENCES app.human_interactions,
  granted_by     text NOT NULL,
  calls          bigint NOT NULL CHECK (calls >= 0),
  tokens         bigint NOT NULL CHECK (tokens >= 0),
  micros         bigint NOT NULL CHECK (micros >= 0),
  created_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (task_key, n),
  FOREIGN KEY (task_key, n) REFERENCES app.model_asks
);
CREATE TRIGGER model_grants_append_only BEFORE UPDATE OR DELETE ON app.model_grants
  FOR EACH ROW EXECUTE FUNCTION app.refuse_change();

-- Decides a call and writes its row, in one transaction: the sums of every scope are locked in one order, so that
-- calls at the same time take turns and together stay within the bounds. A key that is there already is read.
--
-- Answers {"known": true} | {"allowed": true, "leftMs"} | {"refused": {scope, metric, limit, observed}}; scope and
-- metric are absent where the caller itself refused (`p_refused`) or the session is over.
CREATE FUNCTION app.model_call_admit(
  p_op_key text, p_sandbox text, p_n bigint, p_agent text, p_provider text, p_provider_version integer, p_model text,
  p_protocol text, p_request_hash text, p_request_bytes bigint, p_limits jsonb, p_tokens bigint, p_micros bigint,
  p_refused text)
RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
  v_session app.remote_execution_sessions;
  v_now     timestamptz;
  v_scope   text;
  v_key     text;
  v_sums    app.model_usage;
  v_limits  jsonb := p_limits;
  v_extra   jsonb;
  v_limit   jsonb;
  v_over    jsonb;
  v_why     text := p_refused;
  v_left    bigint;
  v_elapsed bigint;
BEGIN
  IF EXISTS (SELECT 1 FROM app.model_calls WHERE op_key = p_op_key) THEN
    RETURN jsonb_build_object('known', true);
  END IF;
  SELECT * INTO v_session FROM app.remote_execution_sessions WHERE sandbox_id = p_sandbox FOR SHARE;
  IF NOT FOUND OR app.session_is_over(v_session.state) THEN
    RETURN jsonb_build_object('refused', jsonb_build_object('why', 'the session is over'));
  END IF;
  IF v_why IS NULL THEN
    -- The widest sum first: its holder's moment is the call's, so that moments are in the order of decisions.
    INSERT INTO app.model_usage (tenant_id, scope, key) VALUES (v_session.tenant_id, 'tenant', p_provider)
    ON CONFLICT DO NOTHING;
    PERFORM 1 FROM app.model_usage
      WHERE tenant_id = v_session.tenant_id AND scope = 'tenant' AND key = p_provider FOR UPDATE;
  END IF;
  v_now := clock_timestamp();
  IF v_why IS NULL THEN
    SELECT jsonb_build_object('calls', sum(calls), 'tokens', sum(tokens), 'micros', sum(micros)) INTO v_extra
      FROM app.model_grants WHERE task_key = v_session.task_key HAVING count(*) > 0;
    IF v_extra IS NOT NULL AND v_limits ? 'sandbox' THEN
      v_limits := jsonb_set(v_limits, '{sandbox}', (
        SELECT jsonb_object_agg(key, to_jsonb((value #>> '{}')::numeric + coalesce((v_extra ->> key)::numeric, 0)))
          FROM jsonb_each(v_limits -> 'sandbox')));
    END IF;
    FOREACH v_scope IN ARRAY ARRAY['tenant','day','run','sandbox'] LOOP
      v_key := app.model_scope_key(v_scope, p_sandbox, v_session.run_id, p_provider, v_now);
      INSERT INTO app.model_usage (tenant_id, scope, key, first_at)
      VALUES (v_session.tenant_id, v_scope, v_key, v_now) ON CONFLICT DO NOTHING;
      SELECT * INTO v_sums FROM app.model_usage
       WHERE tenant_id = v_session.tenant_id AND scope = v_scope AND key = v_key FOR UPDATE;
      v_limit := v_limits -> v_scope;
      v_elapsed := app.ms(v_now) - app.ms(v_sums.first_at);
      SELECT jsonb_build_object('scope', v_scope, 'metric', m.metric, 'limit', m.bound, 'observed', m.observed)
        INTO v_over
        FROM (VALUES
          (1, 'calls', (v_limit ->> 'calls')::numeric, v_sums.calls::numeric, 1::numeric),
          (2, 'tokens', (v_limit ->> 'tokens')::numeric, v_sums.tokens::numeric, p_tokens::numeric),
          (3, 'micros', (v_limit ->> 'micros')::numeric, v_sums.micros::numeric, p_micros::numeric),
          (4, 'wall_ms', (v_limit ->> 'wall_ms')::numeric, v_elapsed::numeric, 1::numeric)
        ) AS m(place, metric, bound, observed, wanted)
       WHERE m.observed + m.wanted > m.bound ORDER BY m.place LIMIT 1;
      EXIT WHEN v_over IS NOT NULL;
      v_left := least(v_left, (v_limit ->> 'wall_ms')::bigint - v_elapsed);
    END LOOP;
    v_why := v_over ->> 'scope';
  END IF;
  IF v_why IS NOT NULL THEN
    INSERT INTO app.model_calls (op_key, run_id, task_key, sandbox_id, n, tenant_id, agent, provider, provider_version,
      model, protocol, request_hash, request_bytes, limits, reserved_tokens, reserved_micros, tokens, micros, outcome,
      why, created_at, ended_at)
    VALUES (p_op_key, v_session.run_id, v_session.task_key, p_sandbox, p_n, v_session.tenant_id, p_agent, p_provider,
      p_provider_version, p_model, p_protocol, p_request_hash, p_request_bytes, v_limits, 0, 0, 0, 0, 'refused',
      coalesce(p_refused, format('%s budget: %s %s of %s', v_over ->> 'scope', v_over ->> 'metric',
                                 v_over ->> 'observed', v_over ->> 'limit')), v_now, v_now);
    RETURN jsonb_build_object('refused', coalesce(v_over, jsonb_build_object('why', p_refused)));
  END IF;
  UPDATE app.model_usage u
     SET calls = u.calls + 1, tokens = u.tokens + p_tokens, micros = u.micros + p_micros
    FROM unnest(ARRAY['tenant','day','run','sandbox']) s(scope)
   WHERE u.tenant_id = v_session.tenant_id AND u.scope = s.scope
     AND u.key = app.model_scope_key(s.scope, p_sandbox, v_session.run_id, p_provider, v_now);
  INSERT INTO app.model_calls (op_key, run_id, task_key, sandbox_id, n, tenant_id, agent, provider, provider_version,
    model, protocol, request_hash, request_bytes, limits, reserved_tokens, reserved_micros, tokens, micros, created_at)
  VALUES (p_op_key, v_session.run_id, v_session.task_key, p_sandbox, p_n, v_session.tenant_id, p_agent, p_provider,
    p_provider_version, p_model, p_protocol, p_request_hash, p_request_bytes, v_limits, p_tokens, p_micros, p_tokens,
    p_micros, v_now);
  RETURN jsonb_build_object('allowed', true, 'leftMs', v_left);
END $$;

-- Writes what came of a call, once: the sums go by the difference to what was set aside. `p_tokens` and `p_micros` are
-- NULL where it is not known what was paid: what was set aside stays counted.
CREATE FUNCTION app.model_call_settle(
  p_op_key text, p_outcome text, p_status integer, p_in bigint, p_out bigint, p_cached bigint, p_tokens bigint,
  p_micros bigint, p_answer_hash text, p_answer_bytes bigint, p_first_ms bigint, p_wall_ms bigint, p_why text)
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

-- A session that is over has no call on its way: what came of one whose worker is gone is not known, and what was set
-- aside for it stays counted.
CREATE FUNCTION app.model_calls_end() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  UPDATE app.model_calls SET outcome = 'unknown', ended_at = clock_timestamp(),
         why = 'the session ended before the answer did'
   WHERE sandbox_id = NEW.sandbox_id AND outcome IS NULL;
  RETURN NULL;
END $$;
CREATE TRIGGER sessions_end_model_calls AFTER UPDATE OF state ON app.remote_execution_sessions
  FOR EACH ROW WHEN (app.session_is_over(NEW.state) AND NOT app.session_is_over(OLD.state))
  EXECUTE FUNCTION app.model_calls_end();

-- A task that ends asks for nothing more: the transaction that ends it cancels its open questions.
CREATE FUNCTION app.model_asks_end() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  UPDATE app.human_gates g SET state = 'canceled', decided_at = clock_timestamp()
    FROM app.model_asks a
   WHERE a.task_key = NEW.task_key AND g.run_id = a.run_id AND g.gate_key = a.gate_key AND g.state = 'open';
  IF FOUND THEN
    PERFORM pg_notify('cofferdam', 'g:' || NEW.run_id);
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER sbx_runs_end_model_asks AFTER UPDATE OF response ON app.sbx_runs
  FOR EACH ROW WHEN (OLD.response IS NULL AND NEW.response IS NOT NULL
    AND (NEW.request @? '$.sandbox.spec.models.budget ? (@.ask == true)'
         OR NEW.request @? '$.agent.request.spec.models.budget ? (@.ask == true)'))
  EXECUTE FUNCTION app.model_asks_end();

-- A prompt to an agent, once: written before it is sent, its end written once. What it cost is the sum of the calls of
-- its session in app.model_calls; `tokens_in` and `tokens_out` are the agent's own words.
ALTER TABLE app.opencode_calls
  ADD COLUMN agent       text,
  ADD COLUMN schema_hash text CHECK (schema_hash ~ '^[a-f0-9]{64}$'),
  ADD COLUMN prompt      text,
  ADD COLUMN structured  jsonb,
  ADD COLUMN raw         text,
  ADD COLUMN tool_calls  jsonb,
  ADD COLUMN tokens_in   bigint,
  ADD COLUMN tokens_out  bigint,
  ADD COLUMN micros      bigint,
  ADD COLUMN wall_ms     bigint,
  ADD COLUMN error       text,
  ADD COLUMN ended_at    timestamptz;
CREATE INDEX opencode_calls_by_run ON app.opencode_calls (run_id);
CREATE INDEX opencode_calls_open ON app.opencode_calls (session_id) WHERE ended_at IS NULL;

CREATE FUNCTION app.opencode_calls_guard() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF TG_OP = 'DELETE' OR OLD.ended_at IS NOT NULL OR NEW.ended_at IS NULL
     OR (NEW.op_key, NEW.run_id, NEW.step_id, NEW.attempt, NEW.session_id, NEW.request, NEW.prompt, NEW.agent)
        IS DISTINCT FROM
        (OLD.op_key, OLD.run_id, OLD.step_id, OLD.attempt, OLD.session_id, OLD.request, OLD.prompt, OLD.agent) THEN
    RAISE EXCEPTION 'opencode_calls % is append-only', OLD.op_key USING ERRCODE = 'restrict_violation';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER opencode_calls_guard BEFORE UPDATE OR DELETE ON app.opencode_calls
  FOR EACH ROW EXECUTE FUNCTION app.opencode_calls_guard();

CREATE FUNCTION app.opencode_calls_end() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  UPDATE app.opencode_calls SET error = 'the session ended before the answer did', ended_at = clock_timestamp()
   WHERE session_id = NEW.sandbox_id AND ended_at IS NULL;
  RETURN NULL;
END $$;
CREATE TRIGGER sessions_end_opencode_calls AFTER UPDATE OF state ON app.remote_execution_sessions
  FOR EACH ROW WHEN (app.session_is_over(NEW.state) AND NOT app.session_is_over(OLD.state))
  EXECUTE FUNCTION app.opencode_calls_end();
