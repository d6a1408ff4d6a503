-- What a run may reach: names on the network by phase, and directories of the host.

-- What a run's sandboxes may reach, by phase: written in the transaction that lets its execution begin,
-- and never changed. `policy` lists each distinct policy of its tasks: "none", or a list of names.
CREATE TABLE app.egress_policy_snapshots (
  run_id         text NOT NULL REFERENCES app.runs,
  phase          text NOT NULL CHECK (phase IN ('build','exec')),
  policy         jsonb NOT NULL CHECK (jsonb_typeof(policy) = 'array' AND policy <> '[]'),
  policy_digest  text NOT NULL CHECK (policy_digest ~ '^[a-f0-9]{64}$'),
  source         text NOT NULL CHECK (source IN ('recipe','gate','host-admin','org-policy','unrecorded')),
  policy_key     text,
  policy_version integer,
  approver       text,
  origin         text NOT NULL
    CHECK (origin IN ('manual','engine-dbos','api-shim','webhook','webhook-ci','external','unknown')),
  created_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (run_id, phase),
  CHECK ((source = 'org-policy') = (policy_key IS NOT NULL AND policy_version IS NOT NULL))
);
CREATE TRIGGER egress_snapshots_append_only BEFORE UPDATE OR DELETE ON app.egress_policy_snapshots
  FOR EACH ROW EXECUTE FUNCTION app.refuse_change();

-- The digest of a policy, over the stored JSON's own text, so that an auditor can compute it again.
CREATE FUNCTION app.policy_digest(p_policy jsonb) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  SELECT encode(sha256(convert_to(p_policy::text, 'UTF8')), 'hex')
$$;

-- The task's files are in the sandbox during its build too: names of the build phase need the consent that
-- names of the exec phase need. Mirrors of the build phase need the operator's grant alone.
CREATE FUNCTION app.policy_needs_consent(p_phase text, p_policy jsonb) RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  SELECT CASE p_phase WHEN 'exec' THEN p_policy @? '$[*][*] ? (@ != "none")'
                      ELSE p_policy @? '$[*][*] ? (@ != "none" && !(@ starts with "@"))' END
$$;
ALTER TABLE app.egress_policy_snapshots ADD CONSTRAINT names_need_consent
  CHECK (source <> 'recipe' OR NOT app.policy_needs_consent(phase, policy));

-- Names that a running task was refused and asked for, each with its gate.
CREATE TABLE app.egress_asks (
  run_id     text NOT NULL REFERENCES app.runs,
  task_key   text NOT NULL CHECK (task_key ~ '^[a-f0-9]{64}$'),
  phase      text NOT NULL CHECK (phase IN ('build','exec')),
  name       text NOT NULL CHECK (length(name) >= 3 AND length(name) <= 253 AND name = lower(name)),
  gate_key   text NOT NULL,
  created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (task_key, phase, name),
  UNIQUE (run_id, gate_key)
);
CREATE TRIGGER egress_asks_append_only BEFORE UPDATE OR DELETE ON app.egress_asks
  FOR EACH ROW EXECUTE FUNCTION app.refuse_change();

-- What a person granted: one name, to one phase of one task's attempt, until a time.
CREATE TABLE app.egress_grants (
  run_id         text NOT NULL REFERENCES app.runs,
  task_key       text NOT NULL,
  phase          text NOT NULL,
  name           text NOT NULL,
  gate_key       text NOT NULL,
  interaction_id bigint NOT NULL UNIQUE REFERENCES app.human_interactions,
  granted_by     text NOT NULL,
  until          timestamptz NOT NULL,
  created_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (task_key, phase, name),
  FOREIGN KEY (task_key, phase, name) REFERENCES app.egress_asks
);
CREATE TRIGGER egress_grants_append_only BEFORE UPDATE OR DELETE ON app.egress_grants
  FOR EACH ROW EXECUTE FUNCTION app.refuse_change();

-- A name may be granted as long as its task runs. The transaction that ends the task (its worker's, a
-- takeover's, a cancel's) cancels its open questions too; a transaction that lost the task's end to another
-- cancels none.
CREATE FUNCTION app.egress_asks_end() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  UPDATE app.human_gates g SET state = 'canceled', decided_at = clock_timestamp()
    FROM app.egress_asks a
   WHERE a.task_key = NEW.task_key AND g.run_id = a.run_id AND g.gate_key = a.gate_key AND g.state = 'open';
  IF FOUND THEN
    PERFORM pg_notify('cofferdam', 'g:' || NEW.run_id);
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER sbx_runs_end_asks AFTER UPDATE OF response ON app.sbx_runs
  FOR EACH ROW WHEN (OLD.response IS NULL AND NEW.response IS NOT NULL
    AND NEW.request @? '$.sandbox ? (@.netAsk == true || @.build.ask == true)')
  EXECUTE FUNCTION app.egress_asks_end();

-- Whether a run may read any directory of the host. All of these must be the host's own admin's:
--   the run and its intent;
--   every edit of its plan: an edit is an input, so the plan that comes of it has the lesser reach of its
--     submitter and its editors. The holder of a reply link has no key, and no reach. A fork has the edits
--     of the runs before it whose consent it inherited;
--   the recipe's text, as it was imported;
--   each repetition (a fork, a resumed run, the newest retry): it runs again on what the host holds by then,
--     at the word of the key that asked for it.
CREATE FUNCTION app.has_hosts_reach(p_run_id text, p_run_key text, p_intent_key text)
RETURNS boolean LANGUAGE plpgsql STABLE AS $$
BEGIN
  IF NOT (app.is_host_admin(p_run_key) AND app.is_host_admin(p_intent_key)) THEN
    RETURN false;
  END IF;
  RETURN NOT EXISTS (
    WITH RECURSIVE line AS (
      SELECT r.id, r.workflow_id, 0 AS back FROM app.runs r WHERE r.id = p_run_id
      UNION ALL
      SELECT r.id, r.workflow_id, l.back + 1 FROM line l
        JOIN dbos.workflow_status w ON w.workflow_uuid = l.workflow_id
        JOIN app.runs r ON r.workflow_id = w.forked_from),
    asked AS (
      SELECT DISTINCT ON (g.gate_key) g.run_id, g.gate_key FROM line l
        JOIN app.human_gates g ON g.run_id = l.id
       WHERE l.back = 0 OR EXISTS (
               SELECT 1 FROM app.plan_approvals p WHERE p.run_id = p_run_id AND p.gate_key = g.gate_key)
       ORDER BY g.gate_key, l.back)
    SELECT 1 FROM asked a
      JOIN app.gate_edits e ON e.run_id = a.run_id AND e.gate_key = a.gate_key
      JOIN app.human_interactions i ON i.id = e.interaction_id
     WHERE NOT app.is_host_admin(i.key_id))
  AND NOT EXISTS (
    SELECT 1 FROM app.runs r
      JOIN app.recipe_versions v
        ON v.tenant_id = r.tenant_id AND v.id = r.recipe_id AND v.hash = r.recipe_hash
     WHERE r.id = p_run_id AND NOT v.is_host_admins)
  AND NOT EXISTS (
    SELECT 1 FROM app.runs r
     WHERE r.id = p_run_id AND (r.retry_of IS NOT NULL OR r.asked_by IS NOT NULL)
       AND NOT app.is_host_admin(r.asked_by))
  AND NOT EXISTS (
    SELECT 1 FROM app.run_retries t
     WHERE t.run_id = p_run_id AND NOT app.is_host_admin(t.key_id)
       AND t.n = (SELECT max(n) FROM app.run_retries WHERE run_id = p_run_id));
END $$;
