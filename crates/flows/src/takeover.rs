//! Who is alive, who leads, and what the dead left behind.
//!
//! Every worker beats once a second. A worker whose beat is refused was declared dead: its work
//! belongs to others, so it must stop at once. The leader declares dead whoever was silent too long
//! and puts their workflows back on their queues. Sandboxes of the dead are looked for on their own
//! host, by any worker there, and their sessions end only with that evidence.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use cofferdam_ambient::clock;
use cofferdam_contracts::id::SandboxId;
use cofferdam_contracts::sandbox::WipeStatus;
use cofferdam_ledger::LedgerError;
use cofferdam_sandbox::verify_absent;
use tokio::sync::watch;

use crate::task::Executor;

/// A worker beats this often.
const BEAT: Duration = Duration::from_secs(1);
/// A worker that was silent for this long is dead. Four missed beats: long enough for a stalled
/// disk, short enough that a run hardly notices.
const DEAD_AFTER_MS: i64 = 5_000;
/// A beat that takes longer is given up and tried again. A worker that cannot reach the database
/// goes on meanwhile: its sandboxes have no network, and what they end with is committed only where
/// nobody else was faster, so a worker in doubt can do no harm (decision 0005).
const BEAT_TIMEOUT: Duration = Duration::from_secs(4);
/// Looks at an orphan before what is still there is recorded as a failed wipe: its runtime may be
/// busy tearing down.
const ORPHAN_LOOKS: u32 = 5;

pub(crate) struct Takeover {
    pub executor: Arc<Executor>,
    /// Set once this worker must stop.
    pub fenced: watch::Sender<bool>,
}

impl Takeover {
    pub(crate) async fn run(self) {
        let ledger = &self.executor.flows.ledger;
        let mut looks: HashMap<SandboxId, u32> = HashMap::new();
        loop {
            match tokio::time::timeout(BEAT_TIMEOUT, ledger.executor_beat(&self.executor.id)).await
            {
                Ok(Ok(true)) => {}
                Ok(Ok(false)) => return self.fence().await,
                Ok(Err(error)) => tracing::warn!(%error, "a heartbeat failed"),
                Err(_) => tracing::warn!("a heartbeat timed out"),
            }
            if let Err(error) = self.lead().await {
                tracing::warn!(%error, "leading failed");
            }
            if let Err(error) = self.orphans(&mut looks).await {
                tracing::warn!(%error, "looking for orphans failed");
            }
            clock::sleep(BEAT).await;
        }
    }

    async fn fence(&self) {
        tracing::error!(executor = %self.executor.id, "this worker was declared dead and stops: its work is somebody else's now");
        let _ = self.fenced.send(true);
        // Whoever declared it dead leads already; should it have led itself, somebody else shall.
        let _ = self.executor.flows.ledger.resign().await;
    }

    async fn lead(&self) -> Result<(), LedgerError> {
        let ledger = &self.executor.flows.ledger;
        if !ledger.leads().await? {
            return Ok(());
        }
        for dead in ledger.executors_silent(&self.executor.id, DEAD_AFTER_MS).await? {
            let workflows = ledger.executor_take_over(&dead).await?;
            tracing::warn!(%dead, workflows, "a worker is dead; its workflows are queued again");
        }
        ledger.release_delayed().await?;
        Ok(())
    }

    async fn orphans(&self, looks: &mut HashMap<SandboxId, u32>) -> Result<(), LedgerError> {
        let executor = &self.executor;
        for lost in executor.flows.ledger.sessions_lost(&executor.host_id).await? {
            let evidence =
                verify_absent(&executor.host, &lost.sandbox, Path::new(&lost.state_dir), "orphan")
                    .await;
            let look = looks.entry(lost.sandbox.clone()).or_insert(0);
            *look += 1;
            if evidence.status == WipeStatus::Failed && *look < ORPHAN_LOOKS {
                continue;
            }
            looks.remove(&lost.sandbox);
            executor.flows.ledger.session_orphaned(&evidence).await?;
        }
        Ok(())
    }
}

/// At start and at the end: what this host's dead workers left, and what nobody remembers.
pub(crate) async fn reconcile(executor: &Executor) -> Result<(), LedgerError> {
    let ledger = &executor.flows.ledger;
    for lost in ledger.sessions_lost(&executor.host_id).await? {
        let evidence =
            verify_absent(&executor.host, &lost.sandbox, Path::new(&lost.state_dir), "orphan")
                .await;
        if evidence.status == WipeStatus::Verified {
            ledger.session_orphaned(&evidence).await?;
        }
    }
    let live = ledger.sessions_open(&executor.host_id).await?;
    let unknown = cofferdam_sandbox::reconcile(&executor.host, |id| live.contains(id)).await;
    if !unknown.is_empty() {
        tracing::warn!(
            sandboxes = unknown.len(),
            "sandboxes that nobody remembered were destroyed"
        );
    }
    Ok(())
}
