-- Claim: a patch was written to the branch, upon the commit and in the place of the run that its approval's receipt names
-- A row means: a branch, a base, a patch or a run was exchanged after somebody agreed
SELECT p.run_id, p.approved_in, p.branch, p.base, p.patch_sha256
  FROM app.patch_applies p
  JOIN app.runs r ON r.id = p.approved_in
  JOIN app.intents i ON i.id = r.intent_id
 WHERE coalesce(i.inputs ->> 'receipt', '') NOT LIKE 'apply patch sha256:' || p.patch_sha256 || E'\nof run ' || p.run_id || ' (%'
    OR position(E'\nbase commit ' || p.base || E'\n' IN i.inputs ->> 'receipt') = 0
    -- A name with signs that a terminal would obey stands there escaped.
    OR (p.branch ~ '^[ -~]+$'
        AND position(E'\nbranch ' || p.branch || E'\nbase commit ' || p.base || E'\n' IN i.inputs ->> 'receipt') = 0);
