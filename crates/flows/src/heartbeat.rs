//! A worker's heartbeat, on a thread and a connection of its own.
//!
//! ```text
//! beat (1 s) --refused--> fenced         no confirmed beat for EGRESS_LEASE -> names of the exec phase are cut off
//!   --the runtime stood still for STUCK--> no beat: others take the work over
//! ```
//! What keeps the threads of the runtime busy must not look like a dead worker.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use cofferdam_ambient::clock::{self, Stopwatch};
use cofferdam_ledger::health::HealthProbe;
use tokio::runtime::{Builder, Handle};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;

use crate::executor::Executor;

/// A worker beats this often.
const BEAT: Duration = Duration::from_secs(1);
/// A worker that was silent for this long is dead. Four missed beats: long enough for a stalled
/// disk, short enough that a run hardly notices.
const DEAD_AFTER_MS: i64 = 5_000;
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
/// A runtime that did nothing for so long works no more: its work is others'.
const STUCK: Duration = Duration::from_secs(60);

pub(crate) struct Heartbeat {
    executor: Arc<Executor>,
    /// Set once this worker must stop.
    fence: watch::Sender<bool>,
    /// Since the last confirmed beat was sent.
    confirmed: Mutex<Stopwatch>,
    /// Whether, and since when, beats arrive.
    arrival: Mutex<Arrival>,
}

/// The runtime, and a task that it was asked to do.
struct RuntimeProbe {
    runtime: Handle,
    asked: JoinHandle<()>,
    since: Stopwatch,
}

impl RuntimeProbe {
    fn of(runtime: Handle) -> Self {
        Self { asked: runtime.spawn(async {}), runtime, since: Stopwatch::start() }
    }

    /// Whether it has done nothing for too long. To be asked again and again.
    fn is_stuck(&mut self) -> bool {
        if self.asked.is_finished() {
            *self = Self::of(self.runtime.clone());
        }
        let stood = self.since.elapsed();
        if stood >= STUCK {
            let seconds = stood.as_secs();
            tracing::error!(
                seconds,
                "nothing runs in this worker any more: it does not beat, so that others take its work"
            );
        }
        stood >= STUCK
    }
}

/// Its thread, until it is stopped or dropped.
#[derive(Debug)]
pub(crate) struct HeartbeatThread {
    stop: oneshot::Sender<()>,
    ended: oneshot::Receiver<()>,
}

/// How this worker's own beats fare: whoever cannot be heard itself says nothing about others.
#[derive(Debug, Clone, Copy)]
enum Arrival {
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

impl Heartbeat {
    pub(crate) fn new(executor: Arc<Executor>) -> Self {
        Self {
            executor,
            fence: watch::channel(false).0,
            confirmed: Mutex::new(Stopwatch::start()),
            arrival: Mutex::new(Arrival::Steady),
        }
    }

    /// Starts to beat.
    ///
    /// # Errors
    /// A thread that cannot be had, or an address that cannot be read.
    pub(crate) fn start(self: &Arc<Self>) -> std::io::Result<HeartbeatThread> {
        let probe = self.executor.flows.ledger.health_probe().map_err(std::io::Error::other)?;
        let watched = RuntimeProbe::of(Handle::current());
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let (stop, stopped) = oneshot::channel();
        let (end, ended) = oneshot::channel::<()>();
        let heartbeat = Arc::clone(self);
        thread::Builder::new().name("heartbeat".to_owned()).spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    () = heartbeat.beats(probe, watched) => {}
                    () = heartbeat.doubts() => {}
                    // Told to, or its worker is gone.
                    _ = stopped => {}
                }
            });
            drop(end);
        })?;
        Ok(HeartbeatThread { stop, ended })
    }

    /// Tells once this worker was declared dead.
    pub(crate) fn fences(&self) -> watch::Receiver<bool> {
        self.fence.subscribe()
    }

    /// Resolves once this worker is declared dead.
    pub(crate) async fn fenced(&self) {
        // The sender is this heartbeat's own.
        let _ = self.fences().wait_for(|fenced| *fenced).await;
    }

    /// How long others may be silent before this worker, as the leader, declares them dead; `None`: it does not.
    pub(crate) fn dead_after_ms(&self) -> Option<i64> {
        lock(&self.arrival).dead_after_ms()
    }

    /// Ends once this worker is fenced.
    async fn beats(&self, mut probe: HealthProbe, mut watched: RuntimeProbe) {
        loop {
            if watched.is_stuck() {
                clock::sleep(BEAT).await;
                continue;
            }
            let mut beaten = self.beat(&mut probe, BEAT_TIMEOUT).await;
            if beaten.is_none() {
                *lock(&self.arrival) = Arrival::Lost;
                beaten = self.beat(&mut probe, BEAT_ANEW_TIMEOUT).await;
            }
            match beaten {
                Some(true) => {
                    let mut arrival = lock(&self.arrival);
                    *arrival = arrival.confirmed();
                }
                Some(false) => return self.fence(),
                None => {}
            }
            clock::sleep(BEAT).await;
        }
    }

    /// `None` where it is not known whether it arrived.
    async fn beat(&self, probe: &mut HealthProbe, patience: Duration) -> Option<bool> {
        let sent = Stopwatch::start();
        let alive = self.executor.session_states.alive();
        let beat = tokio::time::timeout(patience, probe.beat(&self.executor.id, &alive));
        match beat.await {
            Ok(Ok(beaten)) => {
                if beaten {
                    *lock(&self.confirmed) = sent;
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
            let left = EGRESS_LEASE.saturating_sub(lock(&self.confirmed).elapsed());
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

    fn fence(&self) {
        self.executor.host.doubt(true);
        tracing::error!(executor = %self.executor.id, "this worker was declared dead and stops; another worker has its work");
        // Nothing that it does as the leader, or claims, counts from now on: statements ask for its state.
        let _ = self.fence.send(true);
    }
}

impl HeartbeatThread {
    /// Stops it; afterwards no beat is under way.
    pub(crate) async fn stop(self) {
        let _ = self.stop.send(());
        // An error says that its thread let go of it, which is the end.
        let _ = self.ended.await;
    }
}

/// A poisoned lock only means that a thread panicked beside it; what it holds is whole.
fn lock<T>(held: &Mutex<T>) -> MutexGuard<'_, T> {
    held.lock().unwrap_or_else(PoisonError::into_inner)
}
