-- Claim: a patch was written as the commit, to the branch and repository, upon the base and in the place of the task that its approval's receipt names
-- A row means: a commit, a branch, a base, a patch, a task or a run was exchanged after somebody agreed
SELECT p.run_id, p.approved_in, p.branch, p.base, p.patch_sha256, p.commit_id
  FROM app.patch_applies p
  JOIN app.runs r ON r.id = p.approved_in
  JOIN app.runs o ON o.id = p.run_id
  JOIN app.intents i ON i.id = r.intent_id
 -- A receipt that was erased says nothing any more.
 WHERE (NOT app.is_erased(p.approved_in, 'prompt') AND (coalesce(i.inputs ->> 'receipt', '') NOT LIKE 'apply patch sha256:' || p.patch_sha256 || E'\nof run ' || p.run_id || ' (%'
    OR position(E'\nbase commit ' || p.base || E'\n' IN i.inputs ->> 'receipt') = 0
    -- Names with signs that a terminal would obey stand there escaped.
    OR (p.branch ~ '^[ -~]+$'
        AND position(E'\nbranch ' || p.branch || E'\nbase commit ' || p.base || E'\n' IN i.inputs ->> 'receipt') = 0)
    OR (p.step_id ~ '^[ -~]+$'
        AND position('), task ' || p.step_id || E'\nto repository ' IN i.inputs ->> 'receipt') = 0)
    OR (p.repo ~ '^[ -~]+$' AND position(E'\nto repository ' || p.repo || E'\nbranch ' IN i.inputs ->> 'receipt') = 0)
    -- Rows of before trees were on record have none.
    OR p.commit_id <> app.patch_commit_id(p.run_id, p.step_id, p.patch_sha256, p.approved_in, p.base,
                                          app.ms(o.created_at) / 1000, p.tree_id,
                                          app.receipt_message(i.inputs ->> 'receipt'))))
    -- Its run left no such patch; its bytes are another proof's (artifact_bytes_match).
    OR (EXISTS (SELECT 1 FROM app.artifacts a WHERE a.run_id = p.run_id AND a.kind = 'patch')
        AND NOT EXISTS (SELECT 1 FROM app.artifacts a WHERE a.run_id = p.run_id AND a.kind = 'patch'
                           AND a.step_id = p.step_id AND a.sha256 = p.patch_sha256));
