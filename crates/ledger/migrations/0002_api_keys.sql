-- Keys are stored as SHA-256 of a 256-bit random secret: no dictionary can reach it.
CREATE TABLE app.api_keys (
  key_id     text PRIMARY KEY,
  key_hash   text NOT NULL UNIQUE CHECK (key_hash ~ '^[a-f0-9]{64}$'),
  tenant_id  text NOT NULL CHECK (tenant_id <> ''),
  roles      text[] NOT NULL CHECK (cardinality(roles) BETWEEN 1 AND 5
               AND roles <@ ARRAY['submitter','approver','operator','auditor','admin']),
  label      text,
  created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  revoked_at timestamptz
);

-- Whether a key is the host's own admin's, which is worth as much as this host's root: only then may
-- host directories beyond the allowed ones be given to a task. `no-auth` is a loopback listener's.
-- (plpgsql keeps its plan; an SQL function with a subquery is planned again at every call.)
CREATE FUNCTION app.is_host_admin(p_key_id text) RETURNS boolean LANGUAGE plpgsql STABLE AS $$
BEGIN
  RETURN p_key_id = 'no-auth' OR EXISTS (
    SELECT 1 FROM app.api_keys k
     WHERE k.key_id = p_key_id AND k.tenant_id = 'default' AND 'admin' = ANY (k.roles));
END $$;
