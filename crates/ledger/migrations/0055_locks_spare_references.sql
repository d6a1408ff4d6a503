-- A lock of a row that keeps its key need not keep others from referring to it. `FOR UPDATE` does: the end of a task, whose artifacts
-- refer to its run, waited for a cancel that waited for the task.
DO $$
DECLARE
  v_text text;
BEGIN
  FOR v_text IN
    SELECT pg_get_functiondef(p.oid) FROM pg_proc p
     WHERE p.pronamespace = 'app'::regnamespace AND p.prokind = 'f' AND p.prosrc ~ '\mFOR UPDATE\M'
  LOOP
    EXECUTE regexp_replace(v_text, '\mFOR UPDATE\M', 'FOR NO KEY UPDATE', 'g');
  END LOOP;
END $$;
