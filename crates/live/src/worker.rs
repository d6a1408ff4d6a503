//! The long-lived sandboxes of a process from its start to its stop, as its worker asks for it.

use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::Duration;

use cofferdam_ambient::clock;
use cofferdam_contracts::id::{ExecutorId, SandboxId, TaskKey};
use cofferdam_contracts::live::LiveWork;
use cofferdam_flows::{
    Attempt, BoxFuture, End, Flows, LiveSandboxes, MemoryBudget, OwnTasks, Result,
};
use cofferdam_sandbox::Host;
use tokio::task::JoinHandle;

use crate::handle::EndOrder;
use crate::live::{Inner, Live};
use crate::live_task::run;
use crate::revocation;
use crate::snapshot::eraser::Eraser;
use crate::snapshot::store::SnapshotStore;
use crate::snapshot::sweep::Sweep;

/// How often a worker that stops looks whether its sandboxes have ended: a wipe takes some ms.
const STOP_LOOK: Duration = Duration::from_millis(20);

impl Live {
    /// Of this process, with the state directory of its host.
    #[must_use]
    pub fn new(flows: &Flows, state_dir: &Path) -> Self {
        cofferdam_ambient::own::declare(state_dir);
        let inner = Arc::new_cyclic(|inner: &Weak<Inner>| {
            let inner = Weak::clone(inner);
            flows.quota.when_full(move || {
                if let Some(inner) = inner.upgrade() {
                    let eraser = Eraser::of(&Self(inner));
                    tokio::spawn(async move { eraser.clean_up().await });
                }
            });
            Inner {
                flows: flows.clone(),
                ledger: flows.ledger.clone(),
                wakes: flows.wakes.clone(),
                store: Arc::new(SnapshotStore::of(&state_dir.join("snapshots"))),
                uploads: Arc::new(SnapshotStore::of(&state_dir.join("uploads"))),
                unrecorded: Arc::default(),
                layers: Arc::default(),
                registry: Arc::default(),
                state_dir: Box::from(state_dir),
            }
        });
        Self(inner)
    }
}

impl LiveSandboxes for Live {
    fn host_found(&self, host: &Host, memory: &MemoryBudget) {
        self.0.registry.made_on(host, memory);
    }

    fn sweep<'a>(&'a self, host: &'a Host) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move { Sweep::of(self).sweep(host).await })
    }

    fn joined(&self, own: OwnTasks) {
        self.0.registry.tasks_of(own);
    }

    fn revocations(&self) -> JoinHandle<()> {
        tokio::spawn(revocation::watch(self.clone()))
    }

    fn aging(&self, host: &Host) -> JoinHandle<()> {
        tokio::spawn(Sweep::of(self).ages(host.clone()))
    }

    fn leaving(&self) {
        self.0.registry.no_tasks();
    }

    fn stop<'a>(&'a self, executor: &'a ExecutorId, patience: Duration) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            stopped(self, executor, patience).await;
            self.0.layers.spare.close().await;
            // What is not sealed by then is sealed by the processes that hold it.
            if tokio::time::timeout(patience, self.0.layers.settled()).await.is_err() {
                tracing::warn!("the files of a paused sandbox are still being sealed");
            }
        })
    }

    fn name_of(&self, task: &TaskKey) -> Option<SandboxId> {
        self.0.registry.take_name(task)
    }

    fn hold<'a>(&'a self, attempt: Attempt<'a>, work: &'a LiveWork) -> BoxFuture<'a, End> {
        Box::pin(run(self, attempt, work))
    }
}

/// Ends what this process holds, with its evidence, because the process stops; waits no longer than this.
async fn stopped(live: &Live, executor: &ExecutorId, patience: Duration) {
    live.0.registry.withdraw_all();
    let unused = async {
        if let Some(maker) = live.0.registry.maker() {
            maker.close(patience).await;
        }
    };
    let held = live.0.registry.all();
    held.iter().for_each(|held| held.end(EndOrder::Stop));
    let ended = async {
        while !held.is_empty() && live.0.ledger.live().unended(executor).await.unwrap_or(0) > 0 {
            clock::sleep(STOP_LOOK).await;
        }
    };
    let (ended, ()) = tokio::join!(tokio::time::timeout(patience, ended), unused);
    if ended.is_err() {
        tracing::warn!("not every sandbox ended in time; the next worker of this host wipes them");
    }
}
