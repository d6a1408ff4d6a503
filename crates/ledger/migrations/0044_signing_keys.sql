-- Which signing key this installation uses: its fingerprint, never the key. One is in force at a time.
CREATE TABLE app.signing_keys (
  fingerprint text PRIMARY KEY CHECK (fingerprint ~ '^[a-f0-9]{64}$'),
  created_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
  retired_at  timestamptz
);
CREATE UNIQUE INDEX signing_keys_one_in_force ON app.signing_keys ((true)) WHERE retired_at IS NULL;
