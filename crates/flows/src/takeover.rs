//! Who is alive, who leads, and what the dead left behind.
//!
//! ```text
//! beat (1 s) --refused--> fenced        lead (1 s) -> the silent are dead; unreachable sessions are held
//! looks (1 s) -> this host's due sessions: verified -> ended;  failed -> held, later again
//! ```
//! The three go side by side: a wipe that takes long must not delay a heartbeat.
//!
//! Every worker beats once a second. A worker whose beat is refused was declared dead: its work
//! belongs to others, so it must stop at once. One worker leads: it holds a lease in a row, renewed with each
//! turn (decision 0051). The leader declares dead whoever was silent too long and puts back on their queues
//! the workflows of all that are not alive. Sandboxes of the dead are looked for on their own
//! host, by any worker there, and their sessions end only with that evidence.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cofferdam_ambient::clock::{self, Stopwatch};
use cofferdam_contracts::id::SandboxId;
use cofferdam_contracts::run::RunStatus;
use cofferdam_contracts::sandbox::{
    Looked, SessionState, WipeCheck, WipeEvidence, WipeMethod, WipeStatus,
};
use cofferdam_ledger::executors::Lead;
use cofferdam_ledger::sessions::{DueSession, UnreachableSession};
use cofferdam_sandbox::{destroy_orphans, verify_absent, verify_again};
use tokio::sync::watch;

use crate::error::Result;
use crate::executor::Executor;
use crate::settle::alert;

/// A worker beats this often.
const BEAT: Duration = Duration::from_secs(1);
/// A worker that was silent for this long is dead. Four missed beats: long enough for a stalled
/// disk, short enough that a run hardly notices.
const DEAD_AFTER_MS: i64 = 5_000;
/// Who leads holds its lease for so long after its last turn: another one takes over with the turn after it.
const LEASE_MS: i64 = 5_000;
/// A beat that takes longer is given up and tried again at once over a connection of its own, so that one
/// connection that is lost costs no worker its life. A worker that cannot reach the database goes on
/// meanwhile: its sandboxes talk to nobody, and what they end with is committed only where nobody else was
/// faster, so a worker in doubt can do no harm (decisions 0005 and 0018).
const BEAT_TIMEOUT: Duration = Duration::from_secs(2);
/// The second one may take longer: it is a slow database's as well.
const BEAT_ANEW_TIMEOUT: Duration = Duration::from_secs(4);
/// Names of the exec phase are cut off when the last confirmed beat was sent so long ago: a second before
/// anybody else may take the task, for timers that are late.
const EGRESS_LEASE: Duration = Duration::from_secs(4);
/// While in doubt, a confirmed beat is noticed within this time.
const DOUBT_LOOK: Duration = Duration::from_millis(100);
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
    /// Set once this worker must stop.
    pub fenced: watch::Sender<bool>,
    /// Since the last confirmed beat was sent.
    pub confirmed: Mutex<Stopwatch>,
    /// Whether, and since when, beats arrive.
    pub arrival: Mutex<Arrival>,
}

/// How this worker's own beats fare: whoever cannot be heard itself says nothing about others.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Arrival {
    /// No beat was lost since the start.
    Steady,
    /// The last one was lost.
    Lost,
    /// They arrive again since then.
    Again(Stopwatch),
}

impl Arrival {
    fn confirmed(self) -> Self {
        match self {
            Self::Lost => Self::Again(Stopwatch::start()),
            other => other,
        }
    }

    /// How long others may be silent before this worker, as the leader, declares them dead; `None` while
    /// they may have been silenced by what silenced this worker. When a database comes back after an outage,
    /// every worker was silent for as long: they get the time that a dead one has.
    fn dead_after_ms(self) -> Option<i64> {
        match self {
            Self::Steady => Some(DEAD_AFTER_MS),
            Self::Lost => None,
            Self::Again(since) => {
                let is_over = since.elapsed_ms() >= DEAD_AFTER_MS.unsigned_abs();
                is_over.then_some(DEAD_AFTER_MS)
            }
        }
    }
}

impl Takeover {
    pub(crate) async fn run(self) {
        tokio::select! {
            () = self.beats() => {}
            () = self.doubts() => {}
            () = self.leads() => {}
            () = self.looks() => {}
        }
    }

    /// Ends once this worker is fenced.
    async fn beats(&self) {
        loop {
            let mut beaten = self.beat(false).await;
            if beaten.is_none() {
                *self.arrival() = Arrival::Lost;
                beaten = self.beat(true).await;
            }
            match beaten {
                Some(true) => {
                    let mut arrival = self.arrival();
                    *arrival = arrival.confirmed();
                }
                Some(false) => return self.fence(),
                None => {}
            }
            clock::sleep(BEAT).await;
        }
    }

    /// `None` where nobody knows whether it arrived.
    async fn beat(&self, anew: bool) -> Option<bool> {
        let ledger = &self.executor.flows.ledger;
        let sent = Stopwatch::start();
        let alive = self.executor.board.alive();
        let id = &self.executor.id;
        let beat = async {
            match anew {
                false => {
                    tokio::time::timeout(BEAT_TIMEOUT, ledger.executors().beat(id, &alive)).await
                }
                true => {
                    let beat = ledger.executors().beat_anew(id, &alive);
                    tokio::time::timeout(BEAT_ANEW_TIMEOUT, beat).await
                }
            }
        };
        match beat.await {
            Ok(Ok(beaten)) => {
                if beaten {
                    *self.lease() = sent;
                }
                Some(beaten)
            }
            Ok(Err(error)) => {
                tracing::warn!(%error, "a heartbeat failed");
                None
            }
            Err(_) => {
                tracing::warn!("a heartbeat timed out");
                None
            }
        }
    }

    /// Cuts the exec phase's names off while nobody confirmed that this worker lives.
    async fn doubts(&self) {
        let mut was_in_doubt = false;
        loop {
            let left = EGRESS_LEASE.saturating_sub(self.lease().elapsed());
            let is_in_doubt = left.is_zero();
            if is_in_doubt != was_in_doubt {
                let what = if is_in_doubt { "cut off until it is confirmed" } else { "back" };
                tracing::warn!(
                    "this worker's lease is in doubt: {is_in_doubt}; names that tasks may reach are {what}"
                );
                self.executor.host.doubt(is_in_doubt);
                was_in_doubt = is_in_doubt;
            }
            clock::sleep(if is_in_doubt { DOUBT_LOOK } else { left }).await;
        }
    }

    fn lease(&self) -> MutexGuard<'_, Stopwatch> {
        // A poisoned lock only means that somebody panicked beside it; the watch is whole.
        self.confirmed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn arrival(&self) -> MutexGuard<'_, Arrival> {
        self.arrival.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fence(&self) {
        self.executor.host.doubt(true);
        tracing::error!(executor = %self.executor.id, "this worker was declared dead and stops; another worker has its work");
        // Nothing that it does as the leader, or claims, counts from now on: statements ask for its state.
        let _ = self.fenced.send(true);
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
        let dead_after_ms = self.arrival().dead_after_ms();
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
    async fn close_unclosed(&self, lead: &Lead) -> Result<()> {
        let ledger = &self.executor.flows.ledger;
        for left in ledger.runs().unclosed(lead, UNCLOSED_MS).await? {
            if left.works {
                ledger.ops().tasks_cancel(&left.run).await?;
                continue;
            }
            let status = match left.engine.as_str() {
                "CANCELLED" => RunStatus::Canceled,
                _ => RunStatus::Failed,
            };
            let why = format!("its workflow ended as {}, and the run with it", left.engine);
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
            Looked::Host(lost.host_id.clone()),
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
