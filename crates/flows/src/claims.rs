//! The claimer: claims queued workflows the moment they are queued and starts them on the engine.
//!
//! The engine's own poller starts at one second and takes ten to warm up, and a short interval
//! would cost an idle host several per cent of a core. So this process listens instead: an enqueue
//! notifies, one statement claims, and the engine runs what was claimed (decision 0003). A task that this process queues for
//! itself may be claimed by the statement that queues it ([`crate::own_tasks`]).

use std::sync::Arc;

use cofferdam_ambient::clock;
use cofferdam_contracts::id::ExecutorId;
use cofferdam_contracts::run::RunStatus;
use cofferdam_contracts::sandbox::ErrCode;
use cofferdam_ledger::Ledger;
use cofferdam_ledger::engine::{
    INTENT_QUEUE, LIVE_QUEUE, RUN_WORKFLOW, SBX_QUEUE, TASK_WORKFLOW, WorkflowClaim,
};
use cofferdam_ledger::listen::Wakes;
use dbos::{StartOptions, Timeout, WorkflowRef};
use tokio::sync::broadcast::error::TryRecvError;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::task::JoinSet;

use crate::active_workflows::ActiveWorkflows;
use crate::due::{Due, ENGINE_QUEUE};
use crate::error::Result;
use crate::flow::FlowError;
use crate::run::close_failed;
use crate::slots::Slots;

/// Workflows of one claim of a queue without limits: `app.claim` gives no more.
const BATCH: usize = 64;

/// The workflows that may be started.
pub(crate) struct Workflows {
    pub run: WorkflowRef<(), RunStatus, FlowError>,
    pub task: WorkflowRef<(), ErrCode, FlowError>,
    pub escalation: WorkflowRef<(), (), FlowError>,
}

pub(crate) struct Claimer {
    pub ledger: Ledger,
    pub wakes: Wakes,
    pub id: ExecutorId,
    pub registered: Workflows,
    /// Slots of tasks.
    pub slots: Arc<Slots>,
    /// What this process runs, whatever the ledger says.
    pub started: Arc<ActiveWorkflows>,
}

/// Claims, and starts what was claimed with its queuing, until it is aborted.
pub(crate) async fn claims(claimer: Arc<Claimer>, mut own: UnboundedReceiver<WorkflowClaim>) {
    let starting = async {
        let mut all = JoinSet::new();
        loop {
            tokio::select! {
                task = own.recv() => {
                    let Some(task) = task else { return };
                    let claimer = Arc::clone(&claimer);
                    all.spawn(async move { claimer.start(task).await });
                }
                Some(_) = all.join_next() => {}
            }
        }
    };
    tokio::join!(Arc::clone(&claimer).run(), starting);
}

impl Claimer {
    async fn run(self: Arc<Self>) {
        let mut wakes = self.wakes.subscribe();
        let mut due = Due::default();
        loop {
            if self.started.take_doubt()
                && let Err(error) = self.reclaim().await
            {
                tracing::warn!(%error, "could not look for workflows that were lost");
                self.started.doubt();
            }
            while let Some(queue) = due.take() {
                self.drain(queue).await;
            }
            tokio::select! {
                wake = wakes.recv() => {
                    due.heard(wake.ok());
                    // What else has been rung meanwhile is served in one pass.
                    loop {
                        match wakes.try_recv() {
                            Ok(wake) => due.heard(Some(wake)),
                            Err(TryRecvError::Lagged(_)) => due.heard(None),
                            Err(TryRecvError::Empty | TryRecvError::Closed) => break,
                        }
                    }
                }
                () = self.slots.room.notified() => due.ring(SBX_QUEUE),
                () = self.slots.turn.notified() => due.ring(INTENT_QUEUE),
                () = self.slots.life.notified() => due.life_ended(),
                () = clock::sleep(due.left()) => {
                    if due.passed(self.slots.taken() > 0) {
                        self.started.doubt_on();
                    }
                }
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
                match self.ledger.queues().claim(queue, &self.id, running).await {
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
            // All are counted before the first is started, which waits for the engine.
            for workflow in &claimed {
                self.started.begin(&workflow.workflow_id);
                if workflow.name == TASK_WORKFLOW && queue != LIVE_QUEUE {
                    self.slots.take(&workflow.workflow_id);
                }
            }
            for workflow in claimed {
                self.start(workflow).await;
            }
            // Less than a whole batch is all that there was, or all that may run now.
            if is_last {
                return;
            }
        }
    }

    /// Starts one that is marked as started; a task has its slot, unless it comes from beside the queues.
    async fn start(self: &Arc<Self>, workflow: WorkflowClaim) {
        let id = workflow.workflow_id;
        let options = StartOptions {
            workflow_id: Some(&id),
            timeout: Timeout::Inherit,
            queue: None,
            attributes: None,
        };
        let started = match workflow.name.as_str() {
            RUN_WORKFLOW => self.registered.run.start_with((), options).await.map(|handle| {
                let (this, id) = (Arc::clone(self), id.clone());
                tokio::spawn(async move {
                    let ended = handle.result().await;
                    // The workflow itself ends its run; this catches the one that failed before it could.
                    if let Err(dbos::Error::Application(error)) = &ended {
                        close_failed(&this.ledger, &id, &error.to_string()).await;
                    }
                    this.started.end(&id, &ended);
                    this.slots.run_ended();
                });
            }),
            TASK_WORKFLOW => {
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
    /// loop claims, and whoever has a slot is among the started: so nothing can be on its way between the look and the
    /// comparison.
    async fn reclaim(&self) -> Result<()> {
        let ledger = &self.ledger;
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
