-- One consent a round, bound to five digests; a consent that no longer holds is voided beside it.
ALTER TABLE app.plan_approvals
  ADD COLUMN gate_key text,
  ADD COLUMN round integer NOT NULL DEFAULT 1 CHECK (round >= 1),
  ADD COLUMN sandbox_digest text CHECK (sandbox_digest ~ '^[a-f0-9]{64}$'),
  ADD COLUMN egress_digest text CHECK (egress_digest ~ '^[a-f0-9]{64}$'),
  ADD COLUMN image_digest text CHECK (image_digest ~ '^[a-f0-9]{64}$'),
  ADD COLUMN budget_digest text CHECK (budget_digest ~ '^[a-f0-9]{64}$'),
  ADD COLUMN parts jsonb,
  DROP CONSTRAINT plan_approvals_pkey,
  ADD PRIMARY KEY (run_id, round);

CREATE TABLE app.plan_consents_void (
  run_id     text NOT NULL,
  round      integer NOT NULL,
  bindings   jsonb NOT NULL,
  difference jsonb NOT NULL,
  created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (run_id, round),
  FOREIGN KEY (run_id, round) REFERENCES app.plan_approvals
);
CREATE TRIGGER consents_void_append_only BEFORE UPDATE OR DELETE ON app.plan_consents_void
  FOR EACH ROW EXECUTE FUNCTION app.refuse_change();
