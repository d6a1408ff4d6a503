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
