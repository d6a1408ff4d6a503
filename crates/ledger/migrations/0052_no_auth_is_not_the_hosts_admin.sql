-- `no-auth` stands for whoever reaches a loopback listener without a key, a web page among them: a submitter
-- and approver of the default tenant, never this host's root.
CREATE OR REPLACE FUNCTION app.is_host_admin(p_key_id text) RETURNS boolean LANGUAGE plpgsql STABLE AS $$
BEGIN
  RETURN EXISTS (
    SELECT 1 FROM app.api_keys k
     WHERE k.key_id = p_key_id AND k.tenant_id = 'default' AND 'admin' = ANY (k.roles));
END $$;

-- What it consented to before this migration was the law of that time, and stays proven.
CREATE FUNCTION app.was_host_admin(p_key_id text, p_at timestamptz) RETURNS boolean LANGUAGE plpgsql STABLE AS $$
BEGIN
  RETURN app.is_host_admin(p_key_id) OR (p_key_id = 'no-auth' AND p_at < (
    SELECT m.installed_on FROM app.schema_migrations m
     WHERE m.description = '0052_no_auth_is_not_the_hosts_admin'));
END $$;
