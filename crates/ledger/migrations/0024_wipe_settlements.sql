-- An operator's decision that a session may end although its wipe was never verified: who, why, when,
-- and the digest of the failed evidence that they saw.
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

-- The digest of a look, as anybody can compute it again: over the stored JSON's own text.
CREATE FUNCTION app.evidence_digest(p_evidence jsonb) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  SELECT encode(sha256(convert_to(p_evidence::text, 'UTF8')), 'hex')
$$;

-- Only what failed can be settled, and only on the last look's evidence.
CREATE FUNCTION app.settlements_guard() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF NOT EXISTS (
       SELECT 1 FROM app.remote_execution_sessions s
         JOIN app.secure_wipe_evidence w ON w.sandbox_id = s.sandbox_id AND w.look = s.wipe_looks
        WHERE s.sandbox_id = NEW.sandbox_id AND s.state = 'REMOTE_WIPE_VERIFYING' AND s.ended_at IS NULL
          AND w.wipe_status = 'failed' AND w.look = NEW.evidence_look
          AND NEW.evidence_digest = app.evidence_digest(w.evidence)) THEN
    RAISE EXCEPTION 'session % is not held by this evidence', NEW.sandbox_id USING ERRCODE = 'restrict_violation';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER settlements_guard BEFORE INSERT ON app.wipe_settlements
  FOR EACH ROW EXECUTE FUNCTION app.settlements_guard();

-- The law of the wipe: a terminal state needs verified evidence or a settlement, in the same transaction.
CREATE OR REPLACE FUNCTION app.sessions_need_evidence() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF NEW.state IN ('COMPLETED','FAILED','CANCELED','ORPHANED') AND NOT EXISTS (
       SELECT 1 FROM app.secure_wipe_evidence e
       WHERE e.sandbox_id = NEW.sandbox_id AND e.wipe_status = 'verified'
         AND e.terminal_state = NEW.state) AND NOT EXISTS (
       SELECT 1 FROM app.wipe_settlements d
       WHERE d.sandbox_id = NEW.sandbox_id AND d.terminal_state = NEW.state) THEN
    RAISE EXCEPTION 'session % has no verified wipe', NEW.sandbox_id USING ERRCODE = 'restrict_violation';
  END IF;
  RETURN NULL;
END $$;
