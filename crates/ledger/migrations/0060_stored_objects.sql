-- Bytes of large artifacts lie in a store beside the database, each object sealed with a key of its own. That key, sealed for its
-- tenant, is in this row alone: without its bytes nobody reads the object again (decision 0170).
CREATE TABLE app.stored_objects (
  id         text PRIMARY KEY CHECK (id ~ '^[a-f0-9]{32}$'),
  tenant_id  text NOT NULL CHECK (tenant_id <> ''),
  -- The name of the store that has the file, as its directory says it.
  store      text NOT NULL CHECK (store ~ '^[a-f0-9]{32}$'),
  -- Of the bytes as the task left them.
  sha256     text NOT NULL CHECK (sha256 ~ '^[a-f0-9]{64}$'),
  size       bigint NOT NULL CHECK (size >= 0),
  -- Nonce, sealed key and tag; and the fingerprint of the key of secrets that it is sealed under.
  sealed_key bytea CHECK (octet_length(sealed_key) = 60),
  sealed_by  text NOT NULL CHECK (sealed_by ~ '^[a-f0-9]{64}$'),
  created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  -- The key is destroyed.
  erased_at  timestamptz,
  CHECK ((sealed_key IS NULL) = (erased_at IS NOT NULL))
);
-- What a task leaves again is stored once.
CREATE INDEX stored_objects_by_digest ON app.stored_objects (tenant_id, sha256) WHERE erased_at IS NULL;

CREATE FUNCTION app.stored_objects_guard() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF TG_OP = 'DELETE' OR OLD.erased_at IS NOT NULL OR NEW.erased_at IS NULL
     OR (NEW.id, NEW.tenant_id, NEW.store, NEW.sha256, NEW.size, NEW.sealed_by, NEW.created_at)
        IS DISTINCT FROM
        (OLD.id, OLD.tenant_id, OLD.store, OLD.sha256, OLD.size, OLD.sealed_by, OLD.created_at) THEN
    RAISE EXCEPTION 'stored object % is append-only', OLD.id USING ERRCODE = 'restrict_violation';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER stored_objects_guard BEFORE UPDATE OR DELETE ON app.stored_objects
  FOR EACH ROW EXECUTE FUNCTION app.stored_objects_guard();

-- The bytes are `inline` (small text), the blob of the same digest, or this object.
ALTER TABLE app.artifacts ADD COLUMN object_id text REFERENCES app.stored_objects;
ALTER TABLE app.artifacts ADD CONSTRAINT artifacts_have_one_place CHECK (object_id IS NULL OR inline IS NULL);
CREATE INDEX artifacts_by_object ON app.artifacts (object_id) WHERE object_id IS NOT NULL;

-- An artifact's object has its bytes, is its tenant's, and can be read. Asked once the statement is over, which may write both. The
-- row is held, so that no erasure comes between.
CREATE FUNCTION app.artifact_has_its_object() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  v_fits boolean;
BEGIN
  SELECT (o.sha256, o.size, o.tenant_id) = (NEW.sha256, NEW.size, r.tenant_id) AND o.erased_at IS NULL INTO v_fits
    FROM app.stored_objects o JOIN app.runs r ON r.id = NEW.run_id WHERE o.id = NEW.object_id FOR SHARE OF o;
  IF v_fits IS NOT TRUE THEN
    RAISE EXCEPTION 'artifact % is not of object %', NEW.uri, NEW.object_id USING ERRCODE = 'restrict_violation';
  END IF;
  RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER artifacts_have_their_objects AFTER INSERT ON app.artifacts DEFERRABLE INITIALLY IMMEDIATE
  FOR EACH ROW WHEN (NEW.object_id IS NOT NULL) EXECUTE FUNCTION app.artifact_has_its_object();

CREATE OR REPLACE VIEW app.latest_artifacts AS
  SELECT a.* FROM app.artifacts a
  JOIN (SELECT run_id, step_id, max(attempt) AS attempt FROM app.artifacts GROUP BY 1, 2) l
    USING (run_id, step_id, attempt);
