-- One sandbox from its start to the proof that it is gone. A wipe that could not be verified is looked at
-- again: the session counts its looks and says when the next one is due. `runtime`, `runtime_version` and
-- `attestation` are what the sandbox really was. `remote` is where a command goes on without its worker:
-- {provider, id, command}, written before that command starts; with the worker that took it over: token, attached.
CREATE TABLE app.remote_execution_sessions (
  sandbox_id        text PRIMARY KEY CHECK (sandbox_id ~ '^sb[0-9a-f]{20}$'),
  task_key          text NOT NULL REFERENCES app.sbx_runs (task_key),
  execution_no      integer NOT NULL,
  run_id            text NOT NULL REFERENCES app.runs,
  tenant_id         text NOT NULL,
  class             text NOT NULL,
  runtime           text,
  runtime_version   text,
  attestation       jsonb,
  host_id           text NOT NULL,
  state_dir         text NOT NULL,
  executor_id       text NOT NULL,
  state             text NOT NULL CHECK (state IN ('PROVISIONING','BUILDING','EXECUTING','COLLECTING',
                      'REMOTE_WIPE_VERIFYING','COMPLETED','FAILED','CANCELED','ORPHANED')),
  wipe_looks        integer NOT NULL DEFAULT 0,
  wipe_next_at      timestamptz,
  last_heartbeat_at timestamptz,
  created_at        timestamptz NOT NULL DEFAULT clock_timestamp(),
  updated_at        timestamptz NOT NULL DEFAULT clock_timestamp(),
  ended_at          timestamptz,
  remote            jsonb
);
CREATE INDEX sessions_elsewhere ON app.remote_execution_sessions (task_key)
  WHERE remote IS NOT NULL AND ended_at IS NULL;
CREATE INDEX sessions_live ON app.remote_execution_sessions (host_id, executor_id)
  WHERE NOT app.session_is_over(state);
CREATE INDEX sessions_by_run ON app.remote_execution_sessions (run_id);
-- A run waits for its sessions before it ends.
CREATE INDEX sessions_unended ON app.remote_execution_sessions (task_key) WHERE ended_at IS NULL;

-- A session whose wipe failed at least once and that is still not over: its run waits, its host looks
-- again, and an operator may settle it.
CREATE VIEW app.held_sessions AS
  SELECT * FROM app.remote_execution_sessions WHERE state = 'REMOTE_WIPE_VERIFYING' AND wipe_looks > 0;
CREATE INDEX sessions_held ON app.remote_execution_sessions (run_id)
  WHERE state = 'REMOTE_WIPE_VERIFYING' AND wipe_looks > 0;

-- One row a look. At most one look of a session says `verified`.
CREATE TABLE app.secure_wipe_evidence (
  sandbox_id     text NOT NULL REFERENCES app.remote_execution_sessions,
  look           integer NOT NULL DEFAULT 1 CHECK (look >= 1),
  run_id         text NOT NULL,
  task_key       text NOT NULL,
  terminal_state text NOT NULL CHECK (terminal_state IN ('COMPLETED','FAILED','CANCELED','ORPHANED')),
  wipe_timestamp timestamptz NOT NULL,
  wipe_status    text NOT NULL CHECK (wipe_status IN ('verified','failed')),
  reason         text NOT NULL,
  method         text NOT NULL,
  evidence       jsonb NOT NULL,
  origin         text NOT NULL
    CHECK (origin IN ('manual','engine-dbos','api-shim','webhook','webhook-ci','external','unknown')),
  created_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (sandbox_id, look)
);
CREATE UNIQUE INDEX wipe_verified_once ON app.secure_wipe_evidence (sandbox_id) WHERE wipe_status = 'verified';
CREATE INDEX wipe_by_run ON app.secure_wipe_evidence (run_id);
CREATE TRIGGER wipe_append_only BEFORE UPDATE OR DELETE ON app.secure_wipe_evidence
  FOR EACH ROW EXECUTE FUNCTION app.refuse_change();

-- The digest of a look, over the stored JSON's own text, so that an auditor can compute it again.
CREATE FUNCTION app.evidence_digest(p_evidence jsonb) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  SELECT encode(sha256(convert_to(p_evidence::text, 'UTF8')), 'hex')
$$;

-- An operator's decision that a session may end although its wipe was never verified: who, why, when,
-- and the digest of the failed evidence that the operator saw.
CREATE TABLE app.wipe_settlements (
  sandbox_id      text PRIMARY KEY REFERENCES app.remote_execution_sessions,
  run_id          text NOT NULL,
  tenant_id       text NOT NULL,
  terminal_state  text NOT NULL CHECK (terminal_state IN ('COMPLETED','FAILED','CANCELED','ORPHANED')),
  evidence_look   integer NOT NULL,
  evidence_digest text NOT NULL CHECK (evidence_digest ~ '^[a-f0-9]{64}$'),
  actor           text NOT NULL CHECK (actor <> ''),
  key_id          text NOT NULL,
  reason          text NOT NULL CHECK (reason <> ''),
  origin          text NOT NULL
    CHECK (origin IN ('manual','engine-dbos','api-shim','webhook','webhook-ci','external','unknown')),
  settled_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
  FOREIGN KEY (sandbox_id, evidence_look) REFERENCES app.secure_wipe_evidence (sandbox_id, look)
);
CREATE INDEX settlements_by_run ON app.wipe_settlements (run_id);
CREATE TRIGGER settlements_append_only BEFORE UPDATE OR DELETE ON app.wipe_settlements
  FOR EACH ROW EXECUTE FUNCTION app.refuse_change();

-- Only a failed wipe can be settled, and only on the last look's evidence.
CREATE FUNCTION app.settlements_guard() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF NOT EXISTS (
       SELECT 1 FROM app.held_sessions s
         JOIN app.secure_wipe_evidence w ON w.sandbox_id = s.sandbox_id AND w.look = s.wipe_looks
        WHERE s.sandbox_id = NEW.sandbox_id AND s.ended_at IS NULL
          AND w.wipe_status = 'failed' AND w.look = NEW.evidence_look
          AND NEW.evidence_digest = app.evidence_digest(w.evidence)) THEN
    RAISE EXCEPTION 'session % is not held by this evidence', NEW.sandbox_id USING ERRCODE = 'restrict_violation';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER settlements_guard BEFORE INSERT ON app.wipe_settlements
  FOR EACH ROW EXECUTE FUNCTION app.settlements_guard();

-- The law of the wipe: a terminal state needs verified evidence or a settlement, in the same transaction.
CREATE FUNCTION app.sessions_need_evidence() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF app.session_is_over(NEW.state) AND NOT EXISTS (
       SELECT 1 FROM app.secure_wipe_evidence e
        WHERE e.sandbox_id = NEW.sandbox_id AND e.wipe_status = 'verified'
          AND e.terminal_state = NEW.state) AND NOT EXISTS (
       SELECT 1 FROM app.wipe_settlements d
        WHERE d.sandbox_id = NEW.sandbox_id AND d.terminal_state = NEW.state) THEN
    RAISE EXCEPTION 'session % has no verified wipe', NEW.sandbox_id USING ERRCODE = 'restrict_violation';
  END IF;
  RETURN NULL;
END $$;
-- A heartbeat is no change of state: both laws look only where the state is written.
CREATE CONSTRAINT TRIGGER sessions_need_evidence AFTER INSERT OR UPDATE OF state ON app.remote_execution_sessions
  DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION app.sessions_need_evidence();

CREATE FUNCTION app.sessions_guard() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF app.session_is_over(OLD.state) AND NEW.state <> OLD.state THEN
    RAISE EXCEPTION 'session % is % and stays so', OLD.sandbox_id, OLD.state USING ERRCODE = 'restrict_violation';
  END IF;
  NEW.updated_at := clock_timestamp();
  RETURN NEW;
END $$;
CREATE TRIGGER sessions_guard BEFORE UPDATE OF state ON app.remote_execution_sessions
  FOR EACH ROW EXECUTE FUNCTION app.sessions_guard();
