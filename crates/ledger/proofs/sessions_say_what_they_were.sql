-- Claim: a session names the class and runtime that its sandbox really had
-- A row means: a session claims another isolation than was enforced
SELECT s.run_id, s.sandbox_id, s.class, s.runtime, s.attestation,
       x.effective ->> 'isolationClass' AS enforced, x.effective ->> 'runtime' AS ran
  FROM app.remote_execution_sessions s
  JOIN app.sbx_runs x ON x.task_key = s.task_key AND x.response ->> 'sandboxRef' = s.sandbox_id
 WHERE x.effective IS NOT NULL
   AND s.attestation IS NOT NULL
   AND (s.class IS DISTINCT FROM x.effective ->> 'isolationClass'
     OR s.runtime IS DISTINCT FROM x.effective ->> 'runtime'
     OR s.runtime_version IS DISTINCT FROM x.effective ->> 'runtimeVersion'
     OR s.attestation ->> 'class' IS DISTINCT FROM s.class
     OR s.attestation ->> 'runtime' IS DISTINCT FROM s.runtime
     OR s.attestation ->> 'kernel' IS DISTINCT FROM x.effective ->> 'kernel');
