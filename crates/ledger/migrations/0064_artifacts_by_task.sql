-- An artifact is looked for by its task: by the proofs for every task, and whenever a task's index is read.
CREATE INDEX artifacts_by_task ON app.artifacts (task_key, idx);
