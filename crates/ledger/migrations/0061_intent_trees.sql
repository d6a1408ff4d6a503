-- Host directories bound by their content: what an intent bound, once for all of its runs, and what each execution of a task was given.
CREATE TABLE app.intent_trees (
  intent_id  text NOT NULL REFERENCES app.intents,
  -- The path of the host as the plan names it.
  source     text NOT NULL CHECK (source LIKE '/%'),
  -- Of the content: paths, kinds, permissions, bytes, targets of links.
  sha256     text NOT NULL CHECK (sha256 ~ '^[a-f0-9]{64}$'),
  -- Name of the copy in a state directory of the host: of the content with owners and times.
  copy   text NOT NULL CHECK (copy ~ '^[a-f0-9]{64}$'),
  host_id    text NOT NULL CHECK (host_id <> ''),
  state_dir  text NOT NULL CHECK (state_dir LIKE '/%'),
  entries    bigint NOT NULL CHECK (entries >= 1),
  bytes      bigint NOT NULL CHECK (bytes >= 0),
  -- Lies in no allowed directory: given to runs that have the reach of the host's own admin, and to no other of the intent.
  is_host_admins boolean NOT NULL,
  origin     text NOT NULL
    CHECK (origin IN ('manual','engine-dbos','api-shim','webhook','webhook-ci','external','unknown')),
  created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (intent_id, source)
);
CREATE INDEX intent_trees_by_copy ON app.intent_trees (copy);
CREATE TRIGGER intent_trees_append_only BEFORE UPDATE OR DELETE ON app.intent_trees
  FOR EACH ROW EXECUTE FUNCTION app.refuse_change();

CREATE TABLE app.task_trees (
  task_key     text NOT NULL,
  execution_no integer NOT NULL,
  source       text NOT NULL,
  sha256       text NOT NULL CHECK (sha256 ~ '^[a-f0-9]{64}$'),
  copy     text NOT NULL CHECK (copy ~ '^[a-f0-9]{64}$'),
  origin       text NOT NULL
    CHECK (origin IN ('manual','engine-dbos','api-shim','webhook','webhook-ci','external','unknown')),
  created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (task_key, execution_no, source),
  FOREIGN KEY (task_key, execution_no) REFERENCES app.sbx_executions
);
CREATE TRIGGER task_trees_append_only BEFORE UPDATE OR DELETE ON app.task_trees
  FOR EACH ROW EXECUTE FUNCTION app.refuse_change();

-- What a task's request names of the host with the content that it is bound to. `work` is the request on record.
CREATE FUNCTION app.bound_sources(work jsonb) RETURNS TABLE (source text, sha256 text) LANGUAGE sql IMMUTABLE AS $$
  SELECT DISTINCT substr(f ->> 'uri', 8), f ->> 'tree'
    FROM jsonb_array_elements(coalesce(work #> '{sandbox,filesIn}', work #> '{patched,request,filesIn}',
                                       work #> '{opencode,request,filesIn}', '[]')) f
   WHERE f ->> 'uri' LIKE 'host://%' AND f ? 'tree'
$$;

-- What a task's request names of the host without a content, where it is neither said to be live, nor written through, nor a repository at a
-- commit. Only plain commands are bound.
CREATE FUNCTION app.unbound_sources(work jsonb) RETURNS TABLE (source text) LANGUAGE sql IMMUTABLE AS $$
  SELECT DISTINCT substr(f ->> 'uri', 8)
    FROM jsonb_array_elements(coalesce(work #> '{sandbox,filesIn}', '[]')) f
   WHERE f ->> 'uri' LIKE 'host://%' AND NOT f ? 'tree'
     AND f -> 'live' IS DISTINCT FROM 'true' AND f ->> 'access' IS DISTINCT FROM 'full' AND f ->> 'path' <> '/repo'
$$;

-- Whether the tasks of a run are given their directories as they were at one time: all but commands of `exec`, and runs from before this
-- migration.
CREATE FUNCTION app.binds_trees(p_run_id text) RETURNS boolean LANGUAGE sql STABLE AS $$
  SELECT coalesce(r.recipe_id <> 'exec'
                  AND r.created_at >= (SELECT m.installed_on FROM app.schema_migrations m WHERE m.version = 61), true)
    FROM app.runs r WHERE r.id = p_run_id
$$;
