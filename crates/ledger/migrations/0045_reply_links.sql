-- Links that answer one gate once. A row is no link: that needs the signing key.
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

-- A reply in the name of a link consumes it in its own transaction, whoever writes the reply: not
-- there, used, expired, of another gate, made by a key that was revoked since, or bound to a plan that
-- is no longer the gate's or the run's, and the reply with everything that came with it is refused.
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
