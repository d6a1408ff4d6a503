-- Hooks are named within their tenant, and a schedule keeps a bounded number of firings that started nothing.

-- An address over all tenants is the name with a part of the id, which is random: it can be neither taken first nor guessed.
DROP INDEX app.triggers_hook_name;
CREATE UNIQUE INDEX triggers_hook_name ON app.triggers (tenant_id, name) WHERE kind = 'hook' AND state <> 'removed';
CREATE INDEX triggers_hook_address ON app.triggers (name, substr(id, 4, 16)) WHERE kind = 'hook' AND state <> 'removed';

-- Firings of a schedule that started nothing and are gone since.
ALTER TABLE app.triggers ADD COLUMN folded bigint NOT NULL DEFAULT 0 CHECK (folded >= 0 AND folded <= firings);

CREATE OR REPLACE FUNCTION app.trigger_is_its_consent() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF (NEW.id, NEW.kind, NEW.tenant_id, NEW.name, NEW.key_id, NEW.recipe_id, NEW.recipe_v, NEW.recipe_hash, NEW.spec)
     IS DISTINCT FROM
     (OLD.id, OLD.kind, OLD.tenant_id, OLD.name, OLD.key_id, OLD.recipe_id, OLD.recipe_v, OLD.recipe_hash, OLD.spec)
     OR (OLD.state = 'removed' AND NEW.state <> 'removed')
     OR NEW.firings < OLD.firings OR NEW.unsigned < OLD.unsigned OR NEW.folded < OLD.folded THEN
    RAISE EXCEPTION 'trigger % changes more than its state', OLD.id USING ERRCODE = 'restrict_violation';
  END IF;
  RETURN NEW;
END $$;

-- How many of a schedule's newest firings stay, whatever came of them. Those with a run stay as long as their run does.
CREATE FUNCTION app.kept_firings() RETURNS bigint LANGUAGE sql IMMUTABLE AS $$ SELECT 500::bigint $$;

-- A delivery stays, since its row is what refuses a replay.
CREATE FUNCTION app.firing_goes() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF OLD.run_id IS NOT NULL OR OLD.state = 'pending' OR NOT EXISTS (
       SELECT FROM app.triggers t WHERE t.id = OLD.trigger_id AND t.kind = 'schedule' AND OLD.seq <= t.firings - app.kept_firings()) THEN
    RAISE EXCEPTION 'firing % of trigger % stays', OLD.event, OLD.trigger_id USING ERRCODE = 'restrict_violation';
  END IF;
  RETURN OLD;
END $$;
DROP TRIGGER firings_stay ON app.firings;
CREATE TRIGGER firings_stay BEFORE DELETE ON app.firings
  FOR EACH ROW EXECUTE FUNCTION app.firing_goes();
CREATE INDEX firings_runless ON app.firings (trigger_id, seq) WHERE run_id IS NULL AND state <> 'pending';
