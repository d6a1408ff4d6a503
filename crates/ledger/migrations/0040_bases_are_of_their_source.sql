-- A base's repository is where its task's files came from, not what a recipe or a submitter calls itself.

-- As `contracts::cache::source_of`: the URL of the repository, else what of the host the task was given.
-- `work` is a task's request on record: what it asks of its sandbox lies where its kind has it.
CREATE FUNCTION app.cache_source(work jsonb) RETURNS text LANGUAGE sql IMMUTABLE AS $$
  WITH q AS (
    SELECT coalesce(work -> 'sandbox', work #> '{agent,request}', work #> '{live,request}', work #> '{opencode,request}',
                    work #> '{patched,request}') AS request),
  place AS (
    SELECT substr(f ->> 'uri', 8) AS path FROM q, jsonb_array_elements(coalesce(request -> 'filesIn', '[]')) f
     WHERE f ->> 'uri' LIKE 'host://%'
     UNION
    SELECT m ->> 'source' FROM q, jsonb_array_elements(
           CASE jsonb_typeof(request #> '{spec,mounts}') WHEN 'array' THEN request #> '{spec,mounts}' ELSE '[]' END) m),
  named AS (
    SELECT 'git:' AS kind, request #>> '{repo,from}' AS name FROM q WHERE request #>> '{repo,from}' NOT LIKE '/%'
     UNION ALL
    SELECT 'dir:', min(path) FROM place
     WHERE (SELECT coalesce(request #>> '{repo,from}', '/') FROM q) LIKE '/%' HAVING count(*) = 1)
  SELECT coalesce(
    (SELECT kind || CASE WHEN octet_length(name) <= 240 THEN name
                         ELSE 'sha256:' || encode(sha256(convert_to(name, 'UTF8')), 'hex') END FROM named),
    (SELECT 'dirs:' || encode(sha256(convert_to(string_agg(path, E'\n' ORDER BY path COLLATE "C"), 'UTF8')), 'hex')
       FROM place HAVING count(*) > 1),
    'given')
$$;

-- 1: under a name that was said. No task asks for one of these any more.
ALTER TABLE app.dependency_cache_index ADD COLUMN identity integer NOT NULL DEFAULT 1 CHECK (identity IN (1, 2));
ALTER TABLE app.dependency_cache_index ALTER COLUMN identity SET DEFAULT 2;
UPDATE app.dependency_cache_index SET state = 'doomed' WHERE state = 'ready';

CREATE OR REPLACE FUNCTION app.dependency_cache_guard() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF TG_OP = 'DELETE' OR OLD.state = 'evicted' OR (OLD.state = 'doomed' AND NEW.state = 'ready')
     OR (NEW.org_id, NEW.repo_id, NEW.lock_hash, NEW.key, NEW.host_id, NEW.state_dir, NEW.digest, NEW.bytes,
         NEW.files, NEW.created_by, NEW.created_at, NEW.identity)
        IS DISTINCT FROM
        (OLD.org_id, OLD.repo_id, OLD.lock_hash, OLD.key, OLD.host_id, OLD.state_dir, OLD.digest, OLD.bytes,
         OLD.files, OLD.created_by, OLD.created_at, OLD.identity) THEN
    RAISE EXCEPTION 'dependency_cache_index % only goes from ready to evicted', OLD.entry_id
      USING ERRCODE = 'restrict_violation';
  END IF;
  RETURN NEW;
END $$;
