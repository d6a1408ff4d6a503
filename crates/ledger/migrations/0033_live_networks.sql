-- Changes of the network of a long-lived sandbox while it runs: what was in force, what was asked for, who let it be, and
-- what the proxy admits since. `live_sandboxes.egress` is what it was created with.
--   open --the proxy has it--> in-force
--     |--it could not be had--> failed: `before` stayed
--     `--its sandbox ended or was paused--> lost: nobody was told that it is in force
CREATE TABLE app.live_networks (
  live_id        text NOT NULL REFERENCES app.live_sandboxes,
  n              integer NOT NULL CHECK (n > 0),
  tenant_id      text NOT NULL CHECK (tenant_id <> ''),
  run_id         text NOT NULL REFERENCES app.runs,
  sandbox_id     text NOT NULL REFERENCES app.remote_execution_sessions,
  key_id         text NOT NULL CHECK (key_id <> ''),
  before         jsonb NOT NULL,
  requested      jsonb NOT NULL CHECK (requested = '"none"' OR jsonb_typeof(requested) = 'array' AND requested <> '[]'),
  source         text NOT NULL CHECK (source IN ('recipe','host-admin','org-policy')),
  policy_version integer,
  approver       text,
  outcome        text CHECK (outcome IN ('in-force','failed','lost')),
  -- Names that the proxy was seen to admit, and connections that the change ended.
  observed       jsonb CHECK (jsonb_typeof(observed) = 'array'),
  cut            integer CHECK (cut >= 0),
  why            text CHECK (why <> ''),
  created_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
  settled_at     timestamptz,
  PRIMARY KEY (live_id, n),
  CHECK (before <> requested),
  CHECK ((source = 'recipe') = (requested = '"none"')),
  CHECK ((source = 'org-policy') = (policy_version IS NOT NULL)),
  CHECK ((outcome IS NULL) = (settled_at IS NULL)),
  CHECK ((outcome IS NOT DISTINCT FROM 'in-force') = (observed IS NOT NULL AND cut IS NOT NULL)),
  CHECK ((outcome IN ('failed','lost')) IS NOT TRUE OR why IS NOT NULL)
);
CREATE UNIQUE INDEX live_networks_one_at_a_time ON app.live_networks (live_id) WHERE outcome IS NULL;

CREATE FUNCTION app.live_networks_guard() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF TG_OP = 'DELETE' OR OLD.outcome IS NOT NULL
     OR (NEW.live_id, NEW.n, NEW.tenant_id, NEW.run_id, NEW.sandbox_id, NEW.key_id, NEW.before, NEW.requested, NEW.source,
         NEW.policy_version, NEW.approver, NEW.created_at)
        IS DISTINCT FROM
        (OLD.live_id, OLD.n, OLD.tenant_id, OLD.run_id, OLD.sandbox_id, OLD.key_id, OLD.before, OLD.requested, OLD.source,
         OLD.policy_version, OLD.approver, OLD.created_at) THEN
    RAISE EXCEPTION 'live_networks % % is append-only', OLD.live_id, OLD.n USING ERRCODE = 'restrict_violation';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER live_networks_guard BEFORE UPDATE OR DELETE ON app.live_networks
  FOR EACH ROW EXECUTE FUNCTION app.live_networks_guard();

-- The network that is in force: of the last change that came to be, or of the creation.
CREATE FUNCTION app.live_network(p_live text, p_created jsonb) RETURNS jsonb LANGUAGE sql STABLE AS $$
  SELECT coalesce((SELECT requested FROM app.live_networks WHERE live_id = p_live AND outcome = 'in-force'
                    ORDER BY n DESC LIMIT 1), p_created)
$$;

-- Whoever holds the sandbox settles its changes. Where that process was lost, the end of the sandbox does.
CREATE FUNCTION app.live_networks_end() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  UPDATE app.live_networks SET outcome = 'lost', settled_at = clock_timestamp(),
         why = 'the sandbox ' || CASE WHEN NEW.ended_at IS NULL THEN 'was paused' ELSE 'ended' END || ' before this was on record'
   WHERE live_id = NEW.id AND outcome IS NULL;
  RETURN NULL;
END $$;
CREATE TRIGGER live_networks_end AFTER UPDATE ON app.live_sandboxes
  FOR EACH ROW WHEN (NEW.ended_at IS NOT NULL AND OLD.ended_at IS NULL OR NEW.paused_at IS NOT NULL AND OLD.paused_at IS NULL)
  EXECUTE FUNCTION app.live_networks_end();
