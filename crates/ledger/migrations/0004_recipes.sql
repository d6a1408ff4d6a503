CREATE TABLE app.recipes (
  tenant_id  text NOT NULL,
  id         text NOT NULL,
  title      text,
  created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (tenant_id, id)
);

-- A draft may be imported again with other content; each content stays readable by its hash, because
-- runs pin the hash. `is_host_admins`: the host's own admin brought exactly this text. A recipe's text
-- decides what its run does, and any key of the tenant may import another text under the same id and version.
CREATE TABLE app.recipe_versions (
  tenant_id      text NOT NULL,
  id             text NOT NULL,
  v              text NOT NULL,
  hash           text NOT NULL CHECK (hash ~ '^[a-f0-9]{64}$'),
  status         text NOT NULL CHECK (status IN ('draft','candidate','stable')),
  json           jsonb NOT NULL,
  is_host_admins boolean NOT NULL DEFAULT false,
  imported_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (tenant_id, id, v, hash),
  FOREIGN KEY (tenant_id, id) REFERENCES app.recipes
);
CREATE UNIQUE INDEX recipe_versions_one_stable ON app.recipe_versions (tenant_id, id, v) WHERE status = 'stable';
CREATE INDEX recipe_versions_newest ON app.recipe_versions (tenant_id, id, imported_at DESC);

-- A stable `id@v` never changes, and no other content joins it from then on. Only `is_host_admins` may
-- still be set: the same bytes, brought again by the host's admin, gain the host's reach.
CREATE FUNCTION app.recipe_versions_guard() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF TG_OP = 'INSERT' THEN
    IF EXISTS (SELECT 1 FROM app.recipe_versions s WHERE s.tenant_id = NEW.tenant_id AND s.id = NEW.id
                  AND s.v = NEW.v AND s.status = 'stable' AND s.hash <> NEW.hash) THEN
      RAISE EXCEPTION 'recipe %@% is stable', NEW.id, NEW.v USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN NEW;
  END IF;
  IF OLD.status = 'stable' AND (TG_OP = 'DELETE'
       OR (NEW.tenant_id, NEW.id, NEW.v, NEW.hash, NEW.status, NEW.json, NEW.imported_at)
          IS DISTINCT FROM (OLD.tenant_id, OLD.id, OLD.v, OLD.hash, OLD.status, OLD.json, OLD.imported_at)) THEN
    RAISE EXCEPTION 'recipe %@% is stable', OLD.id, OLD.v USING ERRCODE = 'restrict_violation';
  END IF;
  IF TG_OP = 'DELETE' THEN
    RETURN OLD;
  END IF;
  IF (NEW.tenant_id, NEW.id, NEW.v, NEW.hash, NEW.json) IS DISTINCT FROM (OLD.tenant_id, OLD.id, OLD.v, OLD.hash, OLD.json) THEN
    RAISE EXCEPTION 'a recipe version keeps its content' USING ERRCODE = 'restrict_violation';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER recipe_versions_guard BEFORE INSERT OR UPDATE OR DELETE ON app.recipe_versions
  FOR EACH ROW EXECUTE FUNCTION app.recipe_versions_guard();
