-- What was asked for never changes; what was enforced is written once, together with the end; an end
-- stays.
CREATE FUNCTION app.dispatches_guard() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  v_over constant text[] := ARRAY['completed','failed','timeout','cancelled'];
BEGIN
  IF TG_OP = 'INSERT' THEN
    IF NEW.sandbox_effective IS NOT NULL AND NOT NEW.status = ANY (v_over) THEN
      RAISE EXCEPTION 'dispatch % has an effective policy before its end', NEW.id USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN NEW;
  END IF;
  IF TG_OP = 'DELETE' THEN
    IF NOT OLD.status = ANY (v_over) THEN
      RAISE EXCEPTION 'dispatch % is still %', OLD.id, OLD.status USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN OLD;
  END IF;
  IF NEW.sandbox_spec IS DISTINCT FROM OLD.sandbox_spec THEN
    RAISE EXCEPTION 'dispatch % keeps the sandbox_spec that it was created with', OLD.id USING ERRCODE = 'restrict_violation';
  END IF;
  IF ROW(NEW.id, NEW.agent_type, NEW.project_dir, NEW.prompt_hash, NEW.sandbox, NEW.scope_id, NEW.parent_id,
         NEW.spawn_depth, NEW.parent_dispatch_id, NEW.created_at)
     IS DISTINCT FROM
     ROW(OLD.id, OLD.agent_type, OLD.project_dir, OLD.prompt_hash, OLD.sandbox, OLD.scope_id, OLD.parent_id,
         OLD.spawn_depth, OLD.parent_dispatch_id, OLD.created_at) THEN
    RAISE EXCEPTION 'dispatch % keeps its identity', OLD.id USING ERRCODE = 'restrict_violation';
  END IF;
  IF OLD.status = ANY (v_over) AND NEW.status <> OLD.status THEN
    RAISE EXCEPTION 'dispatch % is % and stays so', OLD.id, OLD.status USING ERRCODE = 'restrict_violation';
  END IF;
  IF NEW.sandbox_effective IS DISTINCT FROM OLD.sandbox_effective AND (
       OLD.sandbox_effective IS NOT NULL OR OLD.status = ANY (v_over) OR NOT NEW.status = ANY (v_over)) THEN
    RAISE EXCEPTION 'the sandbox_effective of dispatch % is written once, with its end', OLD.id USING ERRCODE = 'restrict_violation';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER dispatches_guard BEFORE INSERT OR UPDATE OR DELETE ON app.dispatches
  FOR EACH ROW EXECUTE FUNCTION app.dispatches_guard();
