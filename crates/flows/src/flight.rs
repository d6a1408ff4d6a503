//! One task of a host builds a base, the others wait for it.
//!
//! ```text
//! look -> found                                 a hit
//!      -> nobody builds: look again -> build, and let the others look when it is over
//!      -> somebody builds: wait -> it is over: look again
//!                               -> its worker is dead and holds on: wait at the lock after that one
//!                               -> canceled
//! ```
//! A build that fails, or whose worker is killed, passes the turn on: the next one that looks builds.

use std::time::Duration;

use cofferdam_ambient::clock;
use cofferdam_contracts::id::ExecutorId;
use cofferdam_ledger::listen::Wake;
use cofferdam_ledger::tasks::TaskContext;
use cofferdam_sandbox::{BaseRequest, CacheBase, Flight, FlightOutcome};
use tokio::sync::broadcast::Receiver;

use crate::cache::{lookup, on_disk};
use crate::executor::{Executor, may_cancel};

/// How often a waiting task looks whether the build is over: a lock says nothing by itself, and asking costs
/// two calls of the kernel.
const LOOK: Duration = Duration::from_millis(50);
/// Every so many looks the ledger is asked whether the one who builds lives: about a second.
const LOOKS_FOR_LIFE: u32 = 20;

/// How a task gets its dependencies.
pub(crate) enum Ready {
    /// They are there.
    Found(Box<CacheBase>),
    /// It builds them; without a flight where locks do not work here, and then others may too.
    Led(Option<Flight>),
    /// It is not wanted any more.
    Canceled,
}

/// Where a task waits.
struct Wait<'a> {
    executor: &'a Executor,
    wanted: &'a BaseRequest,
    /// The last one who is dead and did not let go.
    dead: Option<ExecutorId>,
}

/// The base of a key, or the right to build it, as soon as there is one of the two.
pub(crate) async fn base_or_lead(
    executor: &Executor,
    task: &TaskContext,
    wanted: &BaseRequest,
    wakes: &mut Receiver<Wake>,
) -> Result<Ready, String> {
    let mut wait = Wait { executor, wanted, dead: None };
    let mut looks: u32 = 0;
    // Whether there may be a base that was not there before.
    let mut is_new = true;
    loop {
        let by = match wait.join().await {
            Ok(FlightOutcome::Lead(flight)) => {
                // All who waited look at the same time, without the lock; who finds nothing looks with it.
                let flight = Some(flight).filter(|_| !is_new);
                if let Some(base) = lookup(executor, task, wanted).await? {
                    return Ok(Ready::Found(Box::new(base)));
                }
                if flight.is_some() {
                    return Ok(Ready::Led(flight));
                }
                is_new = false;
                continue;
            }
            Ok(FlightOutcome::Taken(by)) => by,
            Err(why) => {
                tracing::warn!(task = %task.key, why, "a build cannot be waited for");
                return Ok(Ready::Led(None));
            }
        };
        is_new = true;
        looks = looks.wrapping_add(1);
        if looks.is_multiple_of(LOOKS_FOR_LIFE) {
            wait.look_for_life(by).await;
        }
        if is_canceled(executor, task, wakes).await {
            return Ok(Ready::Canceled);
        }
    }
}

impl Wait<'_> {
    async fn join(&self) -> Result<FlightOutcome, String> {
        let key = self.wanted.key.clone();
        let (who, dead) = (self.executor.id.clone(), self.dead.clone());
        let dead = move || dead.as_ref().map(|dead| dead.as_str().to_owned());
        on_disk(self.executor, move |caches| caches.join(&key, who.as_str(), dead().as_deref()))
            .await
    }

    /// Whoever is known to be dead is not waited for. What the ledger cannot say now it says later.
    async fn look_for_life(&mut self, by: Option<String>) {
        let Some(by) = by.and_then(|by| ExecutorId::parse(&by).ok()) else { return };
        if let Ok(false) = self.executor.flows.ledger.executors().is_live(&by).await {
            self.dead = Some(by);
        }
    }
}

/// Waits for a moment; whether the task was canceled in it.
async fn is_canceled(executor: &Executor, task: &TaskContext, wakes: &mut Receiver<Wake>) -> bool {
    let mut pause = Box::pin(clock::sleep(LOOK));
    loop {
        tokio::select! {
            biased;
            () = &mut pause => return false,
            wake = wakes.recv() => {
                if may_cancel(&wake, task) && executor.is_canceled(&task.key).await {
                    return true;
                }
            }
        }
    }
}
