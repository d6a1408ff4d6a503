-- What every table leans on: instants as the wire shows them, closed lists of states, the refusal to
-- rewrite history, and which database this is.
--
-- The closed list of origins stands in the CHECK of each table: an auditor who reads one table sees it there.

-- Milliseconds since the epoch.
CREATE FUNCTION app.ms(at timestamptz) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$ SELECT floor(extract(epoch FROM at) * 1000)::bigint $$;

-- A run ends in one of these states. Read by triggers, indexes, proofs and statements alike.
CREATE FUNCTION app.is_over(p_status text) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  SELECT p_status IN ('succeeded','failed','canceled','retries_exceeded')
$$;

-- A session of a sandbox ends in one of these states.
CREATE FUNCTION app.session_is_over(p_state text) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  SELECT p_state IN ('COMPLETED','FAILED','CANCELED','ORPHANED')
$$;

-- A dispatch ends in one of these states.
CREATE FUNCTION app.dispatch_is_over(p_status text) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  SELECT p_status IN ('completed','failed','timeout','cancelled')
$$;

-- The trigger of every append-only table.
CREATE FUNCTION app.refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION 'app.% is append-only', TG_TABLE_NAME USING ERRCODE = 'restrict_violation';
END $$;

-- Which database this is: the server's own identifier and the database's. A dump that is restored
-- elsewhere brings the row of its original along.
CREATE FUNCTION app.database_identity() RETURNS text LANGUAGE plpgsql AS $$
DECLARE
  v_oid text := (SELECT oid::text FROM pg_database WHERE datname = current_database());
BEGIN
  RETURN (SELECT system_identifier::text FROM pg_control_system()) || '/' || v_oid;
EXCEPTION WHEN insufficient_privilege THEN
  -- A provider may keep the identifier of its servers to itself.
  RETURN '/' || v_oid;
END $$;

CREATE TABLE app.database_place (
  only_one boolean PRIMARY KEY DEFAULT true CHECK (only_one),
  identity text NOT NULL,
  since    timestamptz NOT NULL DEFAULT clock_timestamp()
);
INSERT INTO app.database_place (identity) VALUES (app.database_identity());
