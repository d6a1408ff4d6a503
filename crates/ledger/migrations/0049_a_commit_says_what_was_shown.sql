-- What the commit says first: the message of its gate's receipt, `NULL` where that shows none. The lines behind the receipt's
-- first five, as far as they are indented (contracts/src/patch/told.rs).
CREATE FUNCTION app.receipt_message(p_receipt text) RETURNS text LANGUAGE sql IMMUTABLE AS $$
  WITH lines AS (
    SELECT line, n FROM unnest(string_to_array(p_receipt, E'\n')) WITH ORDINALITY u(line, n) WHERE n > 5)
  SELECT string_agg(substr(line, 5), E'\n' ORDER BY n)
    FROM lines
   WHERE n > 6 AND (SELECT line = 'message:' FROM lines WHERE n = 6)
     AND n < (SELECT min(n) FROM lines WHERE n > 6 AND line NOT LIKE '    %')
$$;

DROP FUNCTION app.patch_commit_id(text, text, text, text, text, bigint, text);
-- The id of the commit of a patch, as `contracts::patch::PatchCommit` computes it; `NULL` without a tree.
CREATE FUNCTION app.patch_commit_id(p_run text, p_task text, p_patch text, p_approved_in text, p_base text, p_at_s bigint, p_tree text,
                                    p_message text)
RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
  v_who  text := 'Cofferdam <cofferdam@localhost> ' || p_at_s || ' +0000';
  v_said text := coalesce(p_message || E'\n\nRun: ' || p_run || E'\nTask: ', 'Result of Cofferdam run ' || p_run || E'\n\nTask: ');
  v_text bytea := convert_to('tree ' || p_tree || E'\nparent ' || p_base || E'\nauthor ' || v_who || E'\ncommitter ' || v_who
    || E'\n\n' || v_said || p_task || E'\nPatch: sha256:' || p_patch || E'\nApproved-In: ' || p_approved_in || E'\n', 'UTF8');
BEGIN
  IF v_text IS NULL THEN
    RETURN NULL;
  END IF;
  v_text := convert_to('commit ' || length(v_text), 'UTF8') || '\x00'::bytea || v_text;
  RETURN CASE length(p_base) WHEN 64 THEN encode(sha256(v_text), 'hex') ELSE app.sha1(v_text) END;
END $$;
