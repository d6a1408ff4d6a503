//! The claimer: claims queued workflows the moment they are queued and starts them on the engine.
//!
//! The engine's own poller starts at one second and takes ten to warm up, and a short interval
//! would cost an idle host several per cent of a core. So this process listens instead: an enqueue
//! notifies, one statement claims, and the engine runs what was claimed (decision 0003).

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cofferdam_ambient::clock;
use cofferdam_contracts::id::ExecutorId;
use cofferdam_contracts::run::RunStatus;
use cofferdam_contracts::sandbox::ErrCode;
use cofferdam_ledger::engine::{
    CONTROL_QUEUE, Claimed, INTENT_QUEUE, LIVE_QUEUE, RUN_WORKFLOW, SBX_QUEUE, TASK_WORKFLOW,
};
use cofferdam_ledger::listen::Wake;
use dbos::{StartOptions, Timeout, WorkflowRef};

use crate::Flows;
use crate::error::Result;
use crate::flow::FlowError;
use crate::run::close_failed;
use crate::slots::Slots;

/// Workflows of one claim of a queue without limits: `app.claim` gives no more.
const BATCH: usize = 64;
/// Every queue is looked at this often, should a notification get lost or a foreign client enqueue.
const SAFETY_POLL: Duration = Duration::from_secs(1);
/// The engine's own queue, where its `resume` and `fork` put work without a queue of its own.
const ENGINE_QUEUE: &str = "_dbos_internal_queue";

/// The workflows that may be started.
pub(crate) struct Registered {
    pub run: WorkflowRef<(), RunStatus, FlowError>,
    pub task: WorkflowRef<(), ErrCode, FlowError>,
    pub escalation: WorkflowRef<(), (), FlowError>,
}

pub(crate) struct Claimer {
    pub flows: Flows,
    pub id: ExecutorId,
    pub registered: Registered,
    /// Places of tasks.
    pub slots: Arc<Slots>,
    /// What this process runs, whatever the ledger says.
    pub started: Started,
}

impl Claimer {
    /// Claims until it is aborted.
    pub(crate) async fn run(self: Arc<Self>) {
        let mut wakes = self.flows.wakes.subscribe();
        let mut due: HashMap<&'static str, bool> =
            [INTENT_QUEUE, SBX_QUEUE, LIVE_QUEUE, CONTROL_QUEUE, ENGINE_QUEUE]
                .map(|q| (q, true))
                .into();
        loop {
            if self.started.doubt.swap(false, Ordering::AcqRel)
                && let Err(error) = self.reclaim().await
            {
                tracing::warn!(%error, "could not look for workflows that were lost");
                self.started.doubt();
            }
            for (queue, due) in &mut due {
                if std::mem::take(due) {
                    self.drain(queue).await;
                }
            }
            tokio::select! {
                wake = wakes.recv() => match wake {
                    Ok(Wake::Queue(name)) => {
                        if let Some(due) = due.get_mut(name.as_str()) {
                            *due = true;
                        }
                        // What else has been rung meanwhile is served in one pass.
                        while let Ok(Wake::Queue(name)) = wakes.try_recv() {
                            if let Some(due) = due.get_mut(name.as_str()) {
                                *due = true;
                            }
                        }
                    }
                    Ok(Wake::All) | Err(_) => due.values_mut().for_each(|d| *d = true),
                    Ok(_) => {}
                },
                () = self.slots.room.notified() => {
                    due.insert(SBX_QUEUE, true);
                }
                () = self.slots.turn.notified() => {
                    due.insert(INTENT_QUEUE, true);
                }
                () = clock::sleep(SAFETY_POLL) => due.values_mut().for_each(|d| *d = true),
            }
        }
    }

    /// Claims and starts until nothing more is given.
    async fn drain(self: &Arc<Self>, queue: &'static str) {
        loop {
            let is_tasks = queue == SBX_QUEUE;
            // Before the claim looks: a task that ends meanwhile may be what it waits for.
            if is_tasks {
                self.slots.wait(true);
            }
            let running = if is_tasks { self.slots.taken() } else { 0 };
            let (claimed, is_any_left) =
                match self.flows.ledger.queues().claim(queue, &self.id, running).await {
                    Ok(claimed) => claimed,
                    Err(error) => {
                        // It may have been committed all the same, and its answer lost.
                        self.started.doubt();
                        return tracing::warn!(%error, queue, "could not claim from the queue");
                    }
                };
            if is_tasks {
                self.slots.wait(is_any_left);
            }
            let is_last = claimed.len() < BATCH;
            for workflow in claimed {
                self.start(workflow, queue != LIVE_QUEUE).await;
            }
            // Less than a whole batch is all that there was, or all that may run now.
            if is_last {
                return;
            }
        }
    }

    /// Starts one; a task takes a place, unless it comes from beside the queues.
    async fn start(self: &Arc<Self>, workflow: Claimed, takes_place: bool) {
        let id = workflow.workflow_id;
        let options = StartOptions {
            workflow_id: Some(&id),
            timeout: Timeout::Inherit,
            queue: None,
            attributes: None,
        };
        self.started.begin(&id);
        let started = match workflow.name.as_str() {
            RUN_WORKFLOW => self.registered.run.start_with((), options).await.map(|handle| {
                let (this, id) = (Arc::clone(self), id.clone());
                tokio::spawn(async move {
                    let ended = handle.result().await;
                    // The workflow itself ends its run; this catches the one that failed before it could.
                    if let Err(dbos::Error::Application(error)) = &ended {
                        close_failed(&this.flows, &id, &error.to_string()).await;
                    }
                    this.started.end(&id, &ended);
                    this.slots.run_ended();
                });
            }),
            TASK_WORKFLOW => {
                if takes_place {
                    self.slots.take(&id);
                }
                let started = self.registered.task.start_with((), options).await.map(|handle| {
                    let (this, id) = (Arc::clone(self), id.clone());
                    tokio::spawn(async move {
                        this.started.end(&id, &handle.result().await);
                        this.slots.leave(&id);
                    });
                });
                if started.is_err() {
                    self.slots.leave(&id);
                }
                started
            }
            _ => self.registered.escalation.start_with((), options).await.map(|handle| {
                let (this, id) = (Arc::clone(self), id.clone());
                tokio::spawn(async move { this.started.end(&id, &handle.result().await) });
            }),
        };
        if let Err(error) = started {
            tracing::warn!(%error, workflow = id, "a claimed workflow could not be started; it is queued again");
            self.started.end::<(), FlowError>(&id, &Err(error));
        }
    }

    /// Queues again what this executor owns and does not run: a claim whose answer was lost with the
    /// connection, a workflow that the engine gave up when its database failed under it. Only this
    /// loop claims, so nothing can be on its way between the look and the comparison.
    async fn reclaim(&self) -> Result<()> {
        let ledger = &self.flows.ledger;
        for id in ledger.queues().claimed(&self.id, ENGINE_QUEUE).await? {
            if !self.started.has(&id) {
                tracing::warn!(
                    workflow = id,
                    "a workflow was claimed and does not run; it is queued again"
                );
                ledger.queues().unclaim(&id, &self.id).await?;
            }
        }
        Ok(())
    }
}

/// The workflows that this process runs.
#[derive(Debug, Default)]
pub(crate) struct Started {
    /// How often: one that was canceled and resumed may start again before its first run is over.
    ids: Mutex<HashMap<String, u32>>,
    /// Whether something may be owned and not run.
    doubt: AtomicBool,
}

impl Started {
    fn begin(&self, id: &str) {
        *self.lock().entry(id.to_owned()).or_insert(0) += 1;
    }

    fn end<T, E>(&self, id: &str, ended: &dbos::Result<T, E>) {
        let mut ids = self.lock();
        if let Some(count) = ids.get_mut(id) {
            *count -= 1;
            if *count == 0 {
                ids.remove(id);
            }
        }
        drop(ids);
        // An end that is on record needs no second look.
        let is_recorded = matches!(
            ended,
            Ok(_) | Err(dbos::Error::Application(_) | dbos::Error::WorkflowCancelled { .. })
        );
        if !is_recorded {
            self.doubt();
        }
    }

    fn has(&self, id: &str) -> bool {
        self.lock().contains_key(id)
    }

    fn doubt(&self) {
        self.doubt.store(true, Ordering::Release);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, u32>> {
        // A poisoned lock only means that somebody panicked beside it; the map is whole.
        self.ids.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
