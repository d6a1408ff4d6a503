//! Who is alive, who leads, and what the dead left behind.
//!
//! ```text
//! beat (1 s) --refused--> fenced        lead (1 s) -> the silent are dead; unreachable sessions are held
//! looks (1 s) -> this host's due sessions: verified -> ended;  failed -> held, later again
//! ```
//! The three go side by side: a wipe that takes long must not delay a heartbeat, which has a thread of its own (`heartbeat`).
//!
//! Every worker beats once a second. A worker whose beat is refused was declared dead: its work
//! belongs to others, so it must stop at once. One worker leads: it holds a lease in a row, renewed with each
//! turn (decision 0051). The leader declares dead whoever was silent too long and puts back on their queues
//! the workflows of all that are not alive. Sandboxes of the dead are looked for on their own
//! host, by any worker there, and their sessions end only with that evidence.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use cofferdam_ambient::clock;
use cofferdam_contracts::id::SandboxId;
use cofferdam_contracts::run::RunStatus;
use cofferdam_contracts::sandbox::{
    SessionState, WipeCheck, WipeEvidence, WipeMethod, WipeStatus, WipeSubject,
};
use cofferdam_ledger::executors::LeaderTerm;
use cofferdam_ledger::sessions::{DueSession, UnreachableSession};
use cofferdam_sandbox::{destroy_orphans, verify_absent, verify_again};

use crate::error::Result;
use crate::executor::Executor;
use crate::heartbeat::Heartbeat;
use crate::settle::alert;

/// The leader's turns, and looks, come this often.
const BEAT: Duration = Duration::from_secs(1);
/// Who leads holds its lease for so long after its last turn: another one takes over with the turn after it.
const LEASE_MS: i64 = 5_000;
/// Looks at an orphan before what is still there is recorded as a failed wipe: its runtime may be
/// busy tearing down.
const ORPHAN_LOOKS: u32 = 5;
/// A session whose host has had no worker for so long is held: its wipe cannot be verified by anybody.
/// Longer than a reboot's and a restart's usual gap would be too long for a run that waits; a host that
/// comes back looks by itself, and ends the session with its evidence.
const UNREACHABLE_MS: i64 = 60_000;
/// Each so many turns the leader looks for what hardly ever is there: such sessions, runs that nobody ended,
/// gates that wait beyond their deadline.
const THOROUGH_EVERY: u32 = 3;
/// A run whose workflow is over gets so long to be ended by the worker that had it.
const UNCLOSED_MS: i64 = 5_000;

pub(crate) struct Takeover {
    pub executor: Arc<Executor>,
    pub heartbeat: Arc<Heartbeat>,
}

impl Takeover {
    pub(crate) async fn run(self) {
        tokio::select! {
            () = self.heartbeat.fenced() => {}
            () = self.leads() => {}
            () = self.looks() => {}
        }
    }

    async fn leads(&self) {
        for turn in (0..THOROUGH_EVERY).cycle() {
            if let Err(error) = self.lead(turn == 0).await {
                tracing::warn!(%error, "leading failed");
            }
            clock::sleep(BEAT).await;
        }
    }

    async fn lead(&self, thorough: bool) -> Result<()> {
        let ledger = &self.executor.flows.ledger;
        let Some(lead) = ledger.executors().lead(&self.executor.id, LEASE_MS).await? else {
            return Ok(());
        };
        let dead_after_ms = self.heartbeat.dead_after_ms();
        for gone in ledger.executors().take_over(&lead, dead_after_ms).await? {
            let (worker, workflows) = (gone.executor, gone.workflows);
            match gone.is_new {
                true => tracing::warn!(
                    worker,
                    workflows,
                    "a worker is dead; its workflows are queued again"
                ),
                false => tracing::warn!(
                    worker,
                    workflows,
                    "workflows lay under a worker that is not alive; they are queued again"
                ),
            }
        }
        ledger.queues().release_delayed(&lead).await?;
        if thorough {
            self.close_unclosed(&lead).await?;
            ledger.gates().late_wake(&lead).await?;
            ledger.seal().await?;
            for lost in ledger.sessions().unreachable(&lead, UNREACHABLE_MS).await? {
                let evidence = unreached(&lost);
                alert(&evidence);
                ledger.sessions().unreached(&lead, &evidence).await?;
            }
        }
        Ok(())
    }

    /// Ends the runs that nobody ended: first what they still do, and in a later turn the run itself.
    async fn close_unclosed(&self, lead: &LeaderTerm) -> Result<()> {
        let ledger = &self.executor.flows.ledger;
        for left in ledger.tasks().close_left_open(lead, UNCLOSED_MS).await? {
            tracing::warn!(run = %left.run, task = %left.task, why = left.why, "an orphaned attempt is answered");
        }
        for left in ledger.runs().unclosed(lead, UNCLOSED_MS).await? {
            if left.works {
                ledger.ops().tasks_cancel(&left.run).await?;
                continue;
            }
            let status = match left.engine.as_str() {
                "CANCELLED" => RunStatus::Canceled,
                _ => RunStatus::Failed,
            };
            let why = match left.engine.as_str() {
                "GONE" => "its workflow is gone, and the run ends with it".to_owned(),
                engine => format!("its workflow ended as {engine}, and the run with it"),
            };
            tracing::warn!(run = %left.run, why, "an orphaned run is ended");
            // Whether it is a dispatch's is not read for so rare a case.
            ledger.runs().finish_left_open(&left.run, status, &why, true).await?;
        }
        Ok(())
    }

    async fn looks(&self) {
        let mut early: HashMap<SandboxId, u32> = HashMap::new();
        loop {
            if let Err(error) = self.look(&mut early).await {
                tracing::warn!(%error, "looking for orphans failed");
            }
            clock::sleep(BEAT).await;
        }
    }

    async fn look(&self, early: &mut HashMap<SandboxId, u32>) -> Result<()> {
        let executor = &self.executor;
        let abandoned = cofferdam_sandbox::abandoned(&executor.host);
        if !abandoned.is_empty() {
            tracing::warn!(
                containers = abandoned.len(),
                "containers that waited lost their worker"
            );
            destroy_orphans(&executor.host, &abandoned, |_| false).await;
        }
        for due in executor.flows.ledger.sessions().due(&executor.host_id).await? {
            let (evidence, terminal) = look_at(executor, &due).await;
            if due.last.is_none() {
                let looks = early.entry(due.sandbox.clone()).or_insert(0);
                *looks += 1;
                if evidence.status == WipeStatus::Failed && *looks < ORPHAN_LOOKS {
                    continue;
                }
                early.remove(&due.sandbox);
            }
            record(executor, &evidence, terminal).await?;
        }
        Ok(())
    }
}

/// Destroys what is left of a session's sandbox, and in which state the session ends if that worked.
async fn look_at(executor: &Executor, due: &DueSession) -> (WipeEvidence, SessionState) {
    let state_dir = Path::new(&due.state_dir);
    match &due.last {
        Some((last, terminal)) => (verify_again(&executor.host, last, state_dir).await, *terminal),
        None => (
            verify_absent(&executor.host, &due.sandbox, state_dir, "orphan").await,
            SessionState::Orphaned,
        ),
    }
}

async fn record(
    executor: &Executor,
    evidence: &WipeEvidence,
    terminal: SessionState,
) -> Result<()> {
    alert(evidence);
    Ok(executor.flows.ledger.sessions().look(evidence, terminal).await?)
}

/// The evidence that there is nobody to look.
fn unreached(lost: &UnreachableSession) -> WipeEvidence {
    WipeEvidence {
        sandbox_id: lost.sandbox.clone(),
        method: WipeMethod::None,
        reason: "orphan".into(),
        status: WipeStatus::Failed,
        wiped_at_ms: clock::now_ms(),
        upper_bytes: 0,
        upper_inodes: 0,
        base_before: None,
        base_after: None,
        cache_before: None,
        cache_after: None,
        checks: vec![WipeCheck::new(
            WipeSubject::Host(lost.host_id.clone()),
            Some("no worker of this host is alive, so its sandboxes cannot be checked".into()),
        )],
        not_recheckable: Vec::new(),
    }
}

/// At start and at the end: what this host's dead workers left, and what nobody remembers. A wipe
/// that fails here is looked at again by a worker that lives.
pub(crate) async fn reconcile(executor: &Executor) -> Result<()> {
    let ledger = &executor.flows.ledger;
    for due in ledger.sessions().due(&executor.host_id).await? {
        let (evidence, terminal) = look_at(executor, &due).await;
        if evidence.status == WipeStatus::Verified {
            ledger.sessions().look(&evidence, terminal).await?;
        }
    }
    let remains = cofferdam_sandbox::remains(&executor.host);
    let live = ledger.sessions().open(&executor.host_id).await?;
    let unknown = destroy_orphans(&executor.host, &remains, |id| live.contains(id)).await;
    if !unknown.is_empty() {
        tracing::warn!(sandboxes = unknown.len(), "sandboxes without a row were destroyed");
    }
    Ok(())
}
