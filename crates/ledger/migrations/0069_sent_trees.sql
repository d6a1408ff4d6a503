-- Directories that clients sent are bound as those of the host are: their source is `tree:`, and the digest of their content.
ALTER TABLE app.intent_trees DROP CONSTRAINT intent_trees_source_check;
ALTER TABLE app.intent_trees ADD CONSTRAINT intent_trees_source_check
  CHECK (source LIKE '/%' OR (source LIKE 'tree:%' AND source = 'tree:' || sha256));

-- What a task's request names of a host, or of what was sent, with the content that it is bound to. `work` is the request on record.
CREATE OR REPLACE FUNCTION app.bound_sources(work jsonb) RETURNS TABLE (source text, sha256 text) LANGUAGE sql IMMUTABLE AS $$
  SELECT DISTINCT CASE WHEN f ->> 'uri' LIKE 'tree:%' THEN f ->> 'uri' ELSE substr(f ->> 'uri', 8) END, f ->> 'tree'
    FROM jsonb_array_elements(coalesce(work #> '{sandbox,filesIn}', work #> '{patched,request,filesIn}',
                                       work #> '{opencode,request,filesIn}', '[]')) f
   WHERE (f ->> 'uri' LIKE 'host://%' OR f ->> 'uri' LIKE 'tree:%') AND f ? 'tree'
$$;

-- As before, and a sent directory without its content: it is given to no task as it is.
CREATE OR REPLACE FUNCTION app.unbound_sources(work jsonb) RETURNS TABLE (source text) LANGUAGE sql IMMUTABLE AS $$
  SELECT DISTINCT CASE WHEN f ->> 'uri' LIKE 'tree:%' THEN f ->> 'uri' ELSE substr(f ->> 'uri', 8) END
    FROM jsonb_array_elements(coalesce(work #> '{sandbox,filesIn}', '[]')) f
   WHERE NOT f ? 'tree'
     AND (f ->> 'uri' LIKE 'tree:%'
          OR (f ->> 'uri' LIKE 'host://%' AND f -> 'live' IS DISTINCT FROM 'true' AND f ->> 'access' IS DISTINCT FROM 'full'
              AND f ->> 'path' <> '/repo'))
$$;
