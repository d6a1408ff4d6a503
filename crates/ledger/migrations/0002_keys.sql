-- A key is stored as the SHA-256 of a 256-bit random secret: no dictionary reaches it.
CREATE TABLE app.api_keys (
  key_id     text PRIMARY KEY,
  key_hash   text NOT NULL UNIQUE CHECK (key_hash ~ '^[a-f0-9]{64}$'),
  tenant_id  text NOT NULL CHECK (tenant_id <> ''),
  roles      text[] NOT NULL CHECK (cardinality(roles) >= 1 AND cardinality(roles) <= 5
               AND roles <@ ARRAY['submitter','approver','operator','auditor','admin']),
  groups     text[] NOT NULL DEFAULT '{}' CHECK (cardinality(groups) <= 32),
  label      text,
  created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  revoked_at timestamptz
);

-- Whether a key belongs to the host's own admin, which is worth as much as root on this host: only then
-- may a task be given host directories beyond the allowed ones. `no-auth` stands for a caller who reaches
-- a loopback listener without a key, a web page among them, and is never the host's admin.
-- (plpgsql keeps its plan; an SQL function with a subquery is planned again at every call.)
CREATE FUNCTION app.is_host_admin(p_key_id text) RETURNS boolean LANGUAGE plpgsql STABLE AS $$
BEGIN
  RETURN EXISTS (
    SELECT 1 FROM app.api_keys k
     WHERE k.key_id = p_key_id AND k.tenant_id = 'default' AND 'admin' = ANY (k.roles));
END $$;

-- The fingerprint of the signing key that this installation uses, never the key. One is in force at a time.
CREATE TABLE app.signing_keys (
  fingerprint text PRIMARY KEY CHECK (fingerprint ~ '^[a-f0-9]{64}$'),
  created_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
  retired_at  timestamptz
);
CREATE UNIQUE INDEX signing_keys_one_in_force ON app.signing_keys ((true)) WHERE retired_at IS NULL;
