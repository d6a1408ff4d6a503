-- A gate carries its recipe's law (`spec`) and what a yes would be bound to (`bindings`). Every round of a
-- gate is a row of its own: one key has one prompt and one decision.
CREATE TABLE app.human_gates (
  run_id       text NOT NULL REFERENCES app.runs,
  workflow_id  text NOT NULL,
  gate_key     text NOT NULL CHECK (gate_key ~ '^[a-z0-9][a-z0-9:_-]{0,127}$'),
  topic        text NOT NULL CHECK (topic ~ '^(human|sys):'),
  tenant_id    text NOT NULL,
  state        text NOT NULL DEFAULT 'open' CHECK (state IN ('open','received','timed_out','resolved','canceled')),
  round        integer NOT NULL DEFAULT 1 CHECK (round >= 1),
  form         jsonb NOT NULL,
  spec         jsonb,
  plan_digest  text CHECK (plan_digest ~ '^[a-f0-9]{64}$'),
  bindings     jsonb,
  parts        jsonb,
  inputs       jsonb,
  groups       text[] NOT NULL DEFAULT '{}',
  priority     integer NOT NULL DEFAULT 0,
  ttl_s        integer NOT NULL CHECK (ttl_s BETWEEN 1 AND 86400),
  origin       text NOT NULL DEFAULT 'engine-dbos'
    CHECK (origin IN ('manual','engine-dbos','api-shim','webhook','webhook-ci','external','unknown')),
  created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
  deadline_at  timestamptz NOT NULL,
  decided_at   timestamptz,
  escalated_at timestamptz,
  escalation_workflow_id text,
  PRIMARY KEY (run_id, gate_key, topic)
);
CREATE INDEX gates_open ON app.human_gates (tenant_id, deadline_at) WHERE state = 'open';
CREATE INDEX gates_by_workflow ON app.human_gates (workflow_id, gate_key);

-- Every answer, with what became of it. `voted` counts towards a quorum without reaching it;
-- `already_voted` is a second answer of one key.
CREATE TABLE app.human_interactions (
  id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  workflow_id  text NOT NULL,
  run_id       text NOT NULL REFERENCES app.runs,
  gate_key     text NOT NULL,
  topic        text NOT NULL,
  dedupe_key   text NOT NULL CHECK (length(dedupe_key) BETWEEN 1 AND 256),
  payload_hash text NOT NULL CHECK (payload_hash ~ '^[a-f0-9]{64}$'),
  payload      jsonb NOT NULL,
  origin       text NOT NULL
    CHECK (origin IN ('manual','engine-dbos','api-shim','webhook','webhook-ci','external','unknown')),
  outcome      text NOT NULL CHECK (outcome IN ('accepted','voted','already_voted','late','already_decided')),
  key_id       text NOT NULL,
  created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
  UNIQUE (workflow_id, gate_key, topic, dedupe_key)
);
CREATE TRIGGER interactions_append_only BEFORE UPDATE OR DELETE ON app.human_interactions
  FOR EACH ROW EXECUTE FUNCTION app.refuse_change();

-- An answer uses the tenant's quota, as in 0007.
CREATE FUNCTION app.answer_used() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM app.bytes_used(r.tenant_id, octet_length(NEW.payload::text)) FROM app.runs r WHERE r.id = NEW.run_id;
  RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER answers_use_quota AFTER INSERT ON app.human_interactions DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
  EXECUTE FUNCTION app.answer_used();

-- One key answers in another's place, until a time. An end is a row of its own.
CREATE TABLE app.gate_delegations (
  id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  tenant_id  text NOT NULL,
  from_key   text NOT NULL REFERENCES app.api_keys,
  to_key     text NOT NULL REFERENCES app.api_keys,
  group_name text,
  reason     text NOT NULL,
  created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  expires_at timestamptz NOT NULL,
  CHECK (from_key <> to_key),
  CHECK (expires_at > created_at)
);
CREATE INDEX delegations_by_holder ON app.gate_delegations (to_key, expires_at);
CREATE TRIGGER delegations_append_only BEFORE UPDATE OR DELETE ON app.gate_delegations
  FOR EACH ROW EXECUTE FUNCTION app.refuse_change();

CREATE TABLE app.gate_delegation_ends (
  delegation_id bigint PRIMARY KEY REFERENCES app.gate_delegations,
  key_id        text NOT NULL,
  ended_at      timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE TRIGGER delegation_ends_append_only BEFORE UPDATE OR DELETE ON app.gate_delegation_ends
  FOR EACH ROW EXECUTE FUNCTION app.refuse_change();

-- Every answer that counts. A key answers once, and each authority is used once.
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

-- What an approver changed, as JSON Patch writes it: one row a field.
CREATE TABLE app.gate_edits (
  interaction_id bigint NOT NULL REFERENCES app.human_interactions,
  n              integer NOT NULL CHECK (n >= 0),
  run_id         text NOT NULL REFERENCES app.runs,
  gate_key       text NOT NULL,
  op             text NOT NULL CHECK (op IN ('add','replace')),
  path           text NOT NULL CHECK (path LIKE '/%'),
  from_value     jsonb,
  value          jsonb NOT NULL,
  PRIMARY KEY (interaction_id, n),
  CHECK ((op = 'replace') = (from_value IS NOT NULL))
);
CREATE INDEX edits_by_run ON app.gate_edits (run_id, gate_key);
CREATE TRIGGER edits_append_only BEFORE UPDATE OR DELETE ON app.gate_edits
  FOR EACH ROW EXECUTE FUNCTION app.refuse_change();

-- What time did to a gate: reminders and its escalation.
CREATE TABLE app.gate_journal (
  run_id      text NOT NULL REFERENCES app.runs,
  gate_key    text NOT NULL,
  event       text NOT NULL CHECK (event IN ('reminded','escalated')),
  n           integer NOT NULL CHECK (n >= 1),
  detail      jsonb NOT NULL,
  created_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (run_id, gate_key, event, n)
);
CREATE TRIGGER journal_append_only BEFORE UPDATE OR DELETE ON app.gate_journal
  FOR EACH ROW EXECUTE FUNCTION app.refuse_change();

-- One consent a round, bound to five digests; a consent that no longer holds is voided beside it.
CREATE TABLE app.plan_approvals (
  run_id         text NOT NULL REFERENCES app.runs,
  round          integer NOT NULL DEFAULT 1 CHECK (round >= 1),
  intent_id      text NOT NULL REFERENCES app.intents,
  gate_key       text,
  plan_digest    text NOT NULL CHECK (plan_digest ~ '^[a-f0-9]{64}$'),
  sandbox_digest text CHECK (sandbox_digest ~ '^[a-f0-9]{64}$'),
  egress_digest  text CHECK (egress_digest ~ '^[a-f0-9]{64}$'),
  image_digest   text CHECK (image_digest ~ '^[a-f0-9]{64}$'),
  budget_digest  text CHECK (budget_digest ~ '^[a-f0-9]{64}$'),
  parts          jsonb,
  approved_by    text NOT NULL,
  key_id         text NOT NULL,
  notes          text,
  origin         text NOT NULL
    CHECK (origin IN ('manual','engine-dbos','api-shim','webhook','webhook-ci','external','unknown')),
  approved_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (run_id, round)
);
CREATE TRIGGER approvals_append_only BEFORE UPDATE OR DELETE ON app.plan_approvals
  FOR EACH ROW EXECUTE FUNCTION app.refuse_change();

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

-- Links that answer one gate once. A row alone makes no link: that needs the signing key.
CREATE TABLE app.reply_links (
  id             text PRIMARY KEY CHECK (id ~ '^[0-9a-f]{32}$'),
  tenant_id      text NOT NULL,
  run_id         text NOT NULL REFERENCES app.runs,
  gate_key       text NOT NULL,
  topic          text NOT NULL,
  plan_digest    text CHECK (plan_digest ~ '^[a-f0-9]{64}$'),
  digest         text NOT NULL CHECK (digest ~ '^[a-f0-9]{64}$'),
  choice         text CHECK (choice IN ('yes','no')),
  name           text NOT NULL CHECK (length(name) BETWEEN 1 AND 128),
  key_id         text NOT NULL,
  created_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
  expires_at     timestamptz NOT NULL,
  used_at        timestamptz,
  interaction_id bigint UNIQUE REFERENCES app.human_interactions,
  CHECK ((used_at IS NULL) = (interaction_id IS NULL)),
  CHECK (expires_at > created_at)
);
CREATE INDEX reply_links_by_gate ON app.reply_links (run_id, gate_key);

CREATE FUNCTION app.reply_links_guard() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF TG_OP = 'DELETE' OR OLD.used_at IS NOT NULL OR NEW.used_at IS NULL
     OR to_jsonb(NEW) - 'used_at' - 'interaction_id' IS DISTINCT FROM to_jsonb(OLD) - 'used_at' - 'interaction_id' THEN
    RAISE EXCEPTION 'a reply link is used once and changes otherwise never' USING ERRCODE = 'restrict_violation';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER reply_links_guard BEFORE UPDATE OR DELETE ON app.reply_links
  FOR EACH ROW EXECUTE FUNCTION app.reply_links_guard();

-- A reply in the name of a link consumes the link in its own transaction, whichever statement writes the
-- reply. A link that is missing, used, expired, of another gate, made by a key that was revoked since, or
-- bound to a plan that is no longer the gate's or the run's refuses the reply with all that came with it.
CREATE FUNCTION app.reply_link_consume() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  UPDATE app.reply_links l SET used_at = clock_timestamp(), interaction_id = NEW.id
    FROM app.human_gates g JOIN app.runs r ON r.id = g.run_id
   WHERE l.id = substr(NEW.dedupe_key, 6) AND NEW.dedupe_key = 'link:' || l.id AND NEW.key_id = 'link:' || l.name
     AND l.run_id = NEW.run_id AND l.gate_key = NEW.gate_key AND l.topic = NEW.topic AND l.tenant_id = r.tenant_id
     AND l.used_at IS NULL AND l.expires_at > clock_timestamp()
     AND g.run_id = l.run_id AND g.gate_key = l.gate_key AND g.topic = l.topic
     AND l.plan_digest IS NOT DISTINCT FROM g.plan_digest
     AND (g.plan_digest IS NULL OR r.plan_digest = g.plan_digest)
     AND NOT EXISTS (SELECT 1 FROM app.api_keys k WHERE k.key_id = l.key_id AND k.revoked_at IS NOT NULL);
  IF NOT FOUND THEN
    RAISE EXCEPTION 'the reply link cannot be used' USING ERRCODE = 'integrity_constraint_violation';
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER reply_link_consume AFTER INSERT ON app.human_interactions FOR EACH ROW
  WHEN (NEW.key_id LIKE 'link:%') EXECUTE FUNCTION app.reply_link_consume();
