-- A row of a kept file names the host and the directory that have the file. A state directory that was moved, or restored in the
-- place of a lost original, has other ones: `app.place_moves` says so, and in the transaction that wrote such a row, and in no
-- other, rows may change their place as it says.
CREATE TABLE app.place_moves (
  id             bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  transaction_id xid8 NOT NULL DEFAULT pg_current_xact_id(),
  from_place     text NOT NULL CHECK (from_place <> ''),
  to_place       text NOT NULL CHECK (to_place <> ''),
  moved_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
  CHECK (from_place <> to_place),
  UNIQUE (transaction_id, from_place, to_place)
);
CREATE TRIGGER place_moves_append_only BEFORE UPDATE OR DELETE ON app.place_moves
  FOR EACH ROW EXECUTE FUNCTION app.refuse_change();

CREATE FUNCTION app.place_may_become(p_from text, p_to text) RETURNS boolean LANGUAGE sql STABLE AS $$
  SELECT p_from = p_to OR EXISTS (
    SELECT 1 FROM app.place_moves m
     WHERE m.transaction_id = pg_current_xact_id_if_assigned() AND m.from_place = p_from AND m.to_place = p_to)
$$;

-- A file that is on record and was not found at its place, as far as the last look knows.
ALTER TABLE app.snapshots ADD COLUMN missing_at timestamptz;
ALTER TABLE app.template_files ADD COLUMN missing_at timestamptz;
CREATE INDEX snapshots_missing ON app.snapshots (missing_at) WHERE missing_at IS NOT NULL AND erased_at IS NULL;

CREATE OR REPLACE FUNCTION app.snapshots_guard() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF TG_OP = 'DELETE' OR OLD.gone_at IS NOT NULL
     OR (NEW.id, NEW.tenant_id, NEW.live_id, NEW.run_id, NEW.kind, NEW.name, NEW.template, NEW.plain, NEW.memory,
         NEW.sealed_by, NEW.key_id, NEW.origin, NEW.created_at)
        IS DISTINCT FROM
        (OLD.id, OLD.tenant_id, OLD.live_id, OLD.run_id, OLD.kind, OLD.name, OLD.template, OLD.plain, OLD.memory,
         OLD.sealed_by, OLD.key_id, OLD.origin, OLD.created_at)
     OR NOT app.place_may_become(OLD.place, NEW.place)
     -- Sealed once, and not what is erased.
     OR (OLD.sealed_at IS NOT NULL OR OLD.erased_at IS NOT NULL)
        AND (NEW.sealed_at, NEW.sha256, NEW.bytes) IS DISTINCT FROM (OLD.sealed_at, OLD.sha256, OLD.bytes)
     OR NEW.sealed_at IS NULL AND NEW.bytes <> OLD.bytes
     OR OLD.plain_ended_at IS NOT NULL
        AND (NEW.plain_ended_at, NEW.plain_end) IS DISTINCT FROM (OLD.plain_ended_at, OLD.plain_end)
     OR NEW.sealed_key IS NOT NULL AND NEW.sealed_key IS DISTINCT FROM OLD.sealed_key
     OR OLD.erased_at IS NOT NULL AND NEW.erased_at IS DISTINCT FROM OLD.erased_at THEN
    RAISE EXCEPTION 'snapshots % is append-only', OLD.id USING ERRCODE = 'restrict_violation';
  END IF;
  RETURN NEW;
END $$;

CREATE OR REPLACE FUNCTION app.dependency_cache_guard() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF TG_OP = 'DELETE' OR OLD.state = 'evicted' OR (OLD.state = 'doomed' AND NEW.state = 'ready')
     OR (NEW.org_id, NEW.repo_id, NEW.lock_hash, NEW.key, NEW.digest, NEW.bytes,
         NEW.files, NEW.created_by, NEW.created_at, NEW.identity)
        IS DISTINCT FROM
        (OLD.org_id, OLD.repo_id, OLD.lock_hash, OLD.key, OLD.digest, OLD.bytes,
         OLD.files, OLD.created_by, OLD.created_at, OLD.identity)
     OR NOT app.place_may_become(OLD.host_id || ':' || OLD.state_dir, NEW.host_id || ':' || NEW.state_dir) THEN
    RAISE EXCEPTION 'dependency_cache_index % only goes from ready to evicted', OLD.entry_id
      USING ERRCODE = 'restrict_violation';
  END IF;
  RETURN NEW;
END $$;

-- Where an archive lies changes only as a move says, and whose it is never.
CREATE FUNCTION app.template_files_guard() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF TG_OP = 'DELETE' OR (NEW.id, NEW.template_id, NEW.tenant_id, NEW.hash, NEW.created_at)
        IS DISTINCT FROM (OLD.id, OLD.template_id, OLD.tenant_id, OLD.hash, OLD.created_at)
     OR NOT app.place_may_become(OLD.place, NEW.place) THEN
    RAISE EXCEPTION 'template_files % is append-only', OLD.id USING ERRCODE = 'restrict_violation';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER template_files_guard BEFORE UPDATE OR DELETE ON app.template_files
  FOR EACH ROW EXECUTE FUNCTION app.template_files_guard();

-- Gives the rows of one place another one: all of them, or those of these ids alone. How many it were. One audit row for each tenant.
CREATE FUNCTION app.kept_files_move(p_from text, p_to text, p_ids text[]) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
  v_moved bigint;
BEGIN
  INSERT INTO app.place_moves (from_place, to_place) VALUES (p_from, p_to) ON CONFLICT DO NOTHING;
  WITH snapshots AS (
    UPDATE app.snapshots s SET place = p_to, missing_at = NULL
     WHERE s.place = p_from AND s.gone_at IS NULL AND (p_ids IS NULL OR s.id = ANY (p_ids)) RETURNING s.tenant_id),
  archives AS (
    UPDATE app.template_files f SET place = p_to, missing_at = NULL
     WHERE f.place = p_from AND f.gone_at IS NULL AND (p_ids IS NULL OR f.id = ANY (p_ids)) RETURNING f.tenant_id),
  moved AS (SELECT tenant_id FROM snapshots UNION ALL SELECT tenant_id FROM archives),
  recorded AS (
    INSERT INTO app.audit (tenant_id, key_id, actor, op, target, reason, detail, origin)
    SELECT m.tenant_id, 'adopt', 'adopt', 'place.moved', p_to, 'a state directory was moved or adopted',
           jsonb_build_object('from', p_from, 'files', count(*)), 'manual'
      FROM moved m GROUP BY m.tenant_id)
  SELECT count(*) INTO v_moved FROM moved;
  RETURN v_moved;
END $$;

-- The same for everything of a state directory that had another path, or was another host's. Bases that the new place has already
-- stay where they were.
CREATE FUNCTION app.state_directory_moves(p_from_host text, p_from text, p_host text, p_dir text) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
  v_moved bigint := 0;
  v_room  text;
BEGIN
  IF (p_from_host, p_from) = (p_host, p_dir) THEN
    RETURN 0;
  END IF;
  FOREACH v_room IN ARRAY ARRAY['/snapshots', '/uploads'] LOOP
    v_moved := v_moved + app.kept_files_move(p_from_host || ':' || p_from || v_room, p_host || ':' || p_dir || v_room, NULL);
  END LOOP;
  INSERT INTO app.place_moves (from_place, to_place) VALUES (p_from_host || ':' || p_from, p_host || ':' || p_dir)
  ON CONFLICT DO NOTHING;
  UPDATE app.dependency_cache_index c SET host_id = p_host, state_dir = p_dir
   WHERE c.host_id = p_from_host AND c.state_dir = p_from AND c.state <> 'evicted'
     AND NOT EXISTS (SELECT 1 FROM app.dependency_cache_index o
                      WHERE o.host_id = p_host AND o.state_dir = p_dir AND o.key = c.key AND o.state <> 'evicted');
  RETURN v_moved;
END $$;

-- Kept files that are lost: who is paused into them has ended, no tag names them, and their key is destroyed. `false`: a life that
-- goes on from them is not over yet.
CREATE FUNCTION app.kept_files_lost(p_snapshot text, p_why text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
  PERFORM 1 FROM app.snapshots WHERE id = p_snapshot AND erased_at IS NULL FOR UPDATE;
  IF NOT FOUND OR EXISTS (
       SELECT 1 FROM app.live_sandboxes l
        WHERE l.snapshot_id = p_snapshot AND l.ended_at IS NULL AND (l.paused_at IS NOT NULL OR l.started_at IS NULL)
          AND EXISTS (SELECT 1 FROM app.sbx_runs s WHERE s.run_id = l.run_id AND s.response IS NULL)) THEN
    RETURN false;
  END IF;
  UPDATE app.live_sandboxes SET ended_at = clock_timestamp(), end_reason = p_why
   WHERE snapshot_id = p_snapshot AND paused_at IS NOT NULL AND ended_at IS NULL;
  DELETE FROM app.template_tags t USING app.template_builds b WHERE b.id = t.build_id AND b.snapshot_id = p_snapshot;
  INSERT INTO app.audit (tenant_id, key_id, actor, op, target, reason, origin)
  SELECT tenant_id, key_id, 'adopt', 'snapshot.lost', id, p_why, 'manual' FROM app.snapshots WHERE id = p_snapshot;
  UPDATE app.snapshots SET sealed_key = NULL, erased_at = clock_timestamp() WHERE id = p_snapshot;
  RETURN true;
END $$;
