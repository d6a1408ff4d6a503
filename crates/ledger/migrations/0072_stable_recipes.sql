-- A stable `id@v` never changes and has no other content beside it from then on; what the host's admin brought
-- again gains the host's reach, which changes no byte of it.
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

-- The newest version of a limit counts; one that was taken back is the default again.
CREATE OR REPLACE FUNCTION app.dispatch_limit(p_key text, p_default bigint) RETURNS bigint LANGUAGE sql STABLE AS $$
  SELECT coalesce((SELECT CASE WHEN jsonb_typeof(value) = 'number' THEN (value #>> '{}')::bigint END
                     FROM app.dynamic_config WHERE key = p_key AND tenant_id = '*'
                    ORDER BY version DESC LIMIT 1), p_default)
$$;
