-- Secrets of tenants, each version sealed under a key that the database never sees. A version that was
-- replaced or removed keeps its row and loses its bytes.
CREATE TABLE app.secrets (
  tenant_id  text NOT NULL CHECK (tenant_id <> ''),
  name       text NOT NULL CHECK (name ~ '^[a-z0-9][a-z0-9_-]{0,62}$'),
  version    integer NOT NULL CHECK (version >= 1),
  -- The only hosts that may get it; empty: any host of a plan that a person approves.
  hosts      text[] NOT NULL CHECK (cardinality(hosts) <= 64),
  -- Nonce, ciphertext and tag.
  sealed     bytea CHECK (octet_length(sealed) BETWEEN 36 AND 8220),
  -- sha256 of the key.
  sealed_by  text NOT NULL CHECK (sealed_by ~ '^[a-f0-9]{64}$'),
  key_id     text NOT NULL,
  created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  retired_at timestamptz,
  PRIMARY KEY (tenant_id, name, version),
  CHECK ((sealed IS NULL) = (retired_at IS NOT NULL))
);
CREATE UNIQUE INDEX secrets_in_force ON app.secrets (tenant_id, name) WHERE retired_at IS NULL;

CREATE FUNCTION app.secrets_guard() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF TG_OP = 'DELETE' OR OLD.retired_at IS NOT NULL OR NEW.retired_at IS NULL
     OR (NEW.tenant_id, NEW.name, NEW.version, NEW.hosts, NEW.sealed_by, NEW.key_id, NEW.created_at)
        IS DISTINCT FROM (OLD.tenant_id, OLD.name, OLD.version, OLD.hosts, OLD.sealed_by, OLD.key_id, OLD.created_at) THEN
    RAISE EXCEPTION 'a version of a secret only retires' USING ERRCODE = 'restrict_violation';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER secrets_guard BEFORE UPDATE OR DELETE ON app.secrets
  FOR EACH ROW EXECUTE FUNCTION app.secrets_guard();

-- Who sent which version where, on record before the first request leaves. The run's egress policy of the
-- phase is the consent.
CREATE TABLE app.secret_uses (
  run_id     text NOT NULL,
  task_key   text NOT NULL CHECK (task_key ~ '^[a-f0-9]{64}$'),
  sandbox_id text NOT NULL,
  phase      text NOT NULL,
  tenant_id  text NOT NULL,
  name       text NOT NULL,
  version    integer NOT NULL,
  host       text NOT NULL CHECK (length(host) BETWEEN 3 AND 253 AND host = lower(host)),
  count      bigint NOT NULL CHECK (count >= 1),
  first_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
  last_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (sandbox_id, phase, name, version, host),
  FOREIGN KEY (run_id, phase) REFERENCES app.egress_policy_snapshots,
  FOREIGN KEY (tenant_id, name, version) REFERENCES app.secrets
);
CREATE INDEX secret_uses_by_run ON app.secret_uses (run_id);

CREATE FUNCTION app.secret_uses_guard() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF TG_OP = 'DELETE' OR NEW.count < OLD.count OR NEW.last_at < OLD.last_at
     OR (NEW.run_id, NEW.task_key, NEW.sandbox_id, NEW.phase, NEW.tenant_id, NEW.name, NEW.version, NEW.host, NEW.first_at)
        IS DISTINCT FROM (OLD.run_id, OLD.task_key, OLD.sandbox_id, OLD.phase, OLD.tenant_id, OLD.name, OLD.version, OLD.host, OLD.first_at) THEN
    RAISE EXCEPTION 'a use of a secret is only counted on' USING ERRCODE = 'restrict_violation';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER secret_uses_guard BEFORE UPDATE OR DELETE ON app.secret_uses
  FOR EACH ROW EXECUTE FUNCTION app.secret_uses_guard();
