-- Every answer that counts. A key answers once, and nobody is answered for twice.
CREATE TABLE app.gate_votes (
  interaction_id bigint PRIMARY KEY REFERENCES app.human_interactions,
  run_id         text NOT NULL REFERENCES app.runs,
  gate_key       text NOT NULL,
  voter          text NOT NULL,
  authority      text NOT NULL,
  delegation_id  bigint REFERENCES app.gate_delegations,
  choice         text NOT NULL CHECK (choice IN ('yes','no')),
  created_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
  UNIQUE (run_id, gate_key, voter),
  UNIQUE (run_id, gate_key, authority),
  -- A reply link has its maker's authority, and needs no delegation for it.
  CHECK ((voter <> authority AND voter NOT LIKE 'link:%') = (delegation_id IS NOT NULL))
);
CREATE TRIGGER votes_append_only BEFORE UPDATE OR DELETE ON app.gate_votes
  FOR EACH ROW EXECUTE FUNCTION app.refuse_change();
