-- The task's files are in the sandbox during its build too: names of the build phase need the consent that
-- names of the exec phase need. Mirrors of the build phase need the operator's grant alone.
CREATE FUNCTION app.policy_needs_consent(p_phase text, p_policy jsonb) RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  SELECT CASE p_phase WHEN 'exec' THEN p_policy @? '$[*][*] ? (@ != "none")'
                      ELSE p_policy @? '$[*][*] ? (@ != "none" && !(@ starts with "@"))' END
$$;

-- Not validated: what ran before this law stays on record as it was.
ALTER TABLE app.egress_policy_snapshots ADD CONSTRAINT names_need_consent
  CHECK (source <> 'recipe' OR NOT app.policy_needs_consent(phase, policy)) NOT VALID;
