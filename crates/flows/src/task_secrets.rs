//! What opens the secrets of one task's sandbox, and records where they go.

use cofferdam_contracts::error::error_chain;
use cofferdam_contracts::id::{RunId, SandboxId, TaskKey, TenantId};
use cofferdam_contracts::sandbox::Phase;
use cofferdam_contracts::secret::{OpenSecret, SecretUse};
use cofferdam_ledger::secrets::{RunPhase, SecretUseRecord};
use cofferdam_ledger::tasks::TaskContext;
use cofferdam_sandbox::{SecretFuture, SecretSource, SecretVersionCount};

use crate::error::Result;
use crate::secrets::{self, Secrets};

/// The secret source of one task's sandbox.
#[derive(Debug)]
pub(crate) struct TaskSecrets {
    secrets: Secrets,
    tenant: TenantId,
    run: RunId,
    task: TaskKey,
    sandbox: SandboxId,
}

impl TaskSecrets {
    pub(crate) fn new(secrets: &Secrets, task: &TaskContext, sandbox: &SandboxId) -> Self {
        Self {
            secrets: secrets.clone(),
            tenant: task.tenant.clone(),
            run: task.run.clone(),
            task: task.key.clone(),
            sandbox: sandbox.clone(),
        }
    }

    /// Opens the version in force for a host that may have it, with the use on record.
    async fn opened(
        &self,
        phase: Phase,
        used: &SecretUse,
        sent: Option<SecretVersionCount>,
    ) -> Result<OpenSecret, String> {
        let words = |error: crate::Error| error_chain(&error);
        if let Some(sent) = sent {
            self.record(phase, used, sent).await.map_err(words)?;
        }
        let of = Some(RunPhase { run: &self.run, phase });
        let sealed = self.secrets.ledger.secrets().sealed(&self.tenant, &used.name, of).await;
        let sealed = sealed.map_err(|error| error_chain(&error))?;
        let sealed = sealed.ok_or("the tenant has no such secret")?;
        secrets::may_have(&sealed.hosts, &used.host, sealed.is_consented)?;
        let opened = self.secrets.unseal(&self.tenant, &used.name, &sealed).map_err(words)?;
        let first = SecretVersionCount { version: opened.version, count: 1 };
        match self.record(phase, used, first).await.map_err(words)? {
            true => Ok(opened),
            false => Err("the run has no egress policy of this phase on record".to_owned()),
        }
    }

    async fn record(
        &self,
        phase: Phase,
        used: &SecretUse,
        sent: SecretVersionCount,
    ) -> Result<bool> {
        let sent = SecretUseRecord {
            run: &self.run,
            task: &self.task,
            sandbox: &self.sandbox,
            phase,
            name: &used.name,
            version: sent.version,
            host: &used.host,
            count: sent.count,
        };
        Ok(self.secrets.ledger.secrets().sent(&sent).await?)
    }
}

impl SecretSource for TaskSecrets {
    fn open<'a>(
        &'a self,
        phase: Phase,
        used: &'a SecretUse,
        sent: Option<SecretVersionCount>,
    ) -> SecretFuture<'a, Result<OpenSecret, String>> {
        Box::pin(self.opened(phase, used, sent))
    }

    fn count<'a>(
        &'a self,
        phase: Phase,
        used: &'a SecretUse,
        sent: SecretVersionCount,
    ) -> SecretFuture<'a, ()> {
        Box::pin(async move {
            if let Err(error) = self.record(phase, used, sent).await {
                tracing::warn!(%error, secret = %used.name, "uses of a secret were not counted");
            }
        })
    }
}
