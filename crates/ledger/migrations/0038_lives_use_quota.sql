-- A life leaves some 16 KiB of rows and their indexes: its run, task, session, evidence and artifacts. They stay, so they count for
-- their tenant's quota, with what its creator wrote on the sandbox.
CREATE FUNCTION app.life_used() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  v_written bigint := 0;
BEGIN
  IF TG_OP = 'INSERT' THEN
    v_written := coalesce(octet_length(NEW.metadata::text), 0) + coalesce(octet_length(NEW.egress::text), 0);
  END IF;
  PERFORM app.bytes_used(NEW.tenant_id, 16384 + v_written);
  RETURN NULL;
END $$;
-- As in 0007, at the transaction's end.
CREATE CONSTRAINT TRIGGER lives_use_quota AFTER INSERT ON app.live_sandboxes DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
  EXECUTE FUNCTION app.life_used();
CREATE CONSTRAINT TRIGGER next_lives_use_quota AFTER UPDATE OF run_id ON app.live_sandboxes DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
  WHEN (OLD.run_id IS DISTINCT FROM NEW.run_id) EXECUTE FUNCTION app.life_used();

SELECT app.bytes_used(l.tenant_id, count(*) * 16384) FROM app.live_sandboxes l GROUP BY l.tenant_id;
