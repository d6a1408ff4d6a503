-- What every table leans on: instants as the wire shows them, and the refusal to rewrite history.
CREATE FUNCTION app.ms(at timestamptz) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$ SELECT floor(extract(epoch FROM at) * 1000)::bigint $$;

CREATE FUNCTION app.refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION 'app.% is append-only', TG_TABLE_NAME USING ERRCODE = 'restrict_violation';
END $$;

-- The closed list of origins stands in each table's own CHECK: a function there would be parsed
-- again for every row that is written.
