-- Which database this is: a dump that is restored elsewhere brings the row of its original along.
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
