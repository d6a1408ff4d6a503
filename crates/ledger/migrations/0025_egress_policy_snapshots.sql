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

-- The digest of a policy, as anybody can compute it again: over the stored JSON's own text.
CREATE FUNCTION app.policy_digest(p_policy jsonb) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  SELECT encode(sha256(convert_to(p_policy::text, 'UTF8')), 'hex')
$$;

-- Runs that began before this table keep what their tasks asked for, and say that nobody wrote it down then.
INSERT INTO app.egress_policy_snapshots (run_id, phase, policy, policy_digest, source, origin)
SELECT run_id, phase, policy, app.policy_digest(policy), 'unrecorded', 'unknown'
  FROM (SELECT run_id, phase, jsonb_agg(DISTINCT CASE phase WHEN 'exec' THEN coalesce(request #> '{sandbox,net}', '"none"')
                              ELSE coalesce(request #> '{sandbox,build,net}', '"none"') END) AS policy
          FROM app.sbx_runs, unnest(ARRAY['build','exec']) phase
         WHERE provider <> 'engine' GROUP BY run_id, phase) x;

CREATE TRIGGER egress_snapshots_append_only BEFORE UPDATE OR DELETE ON app.egress_policy_snapshots
  FOR EACH ROW EXECUTE FUNCTION app.refuse_change();
