-- Which installation a database is: every state directory that belongs to it keeps this name, whatever URL leads here. A dump brings
-- it along, and an adoption gives a new one, since the original may come back.
ALTER TABLE app.database_place ADD COLUMN installation text NOT NULL DEFAULT gen_random_uuid()::text;

-- The state directory whose admin key it is. One of them works: the key that replaces another revokes it.
ALTER TABLE app.api_keys ADD COLUMN state_dir text CHECK (state_dir <> '');
CREATE UNIQUE INDEX api_keys_one_of_a_state_directory ON app.api_keys (state_dir)
  WHERE state_dir IS NOT NULL AND revoked_at IS NULL;
