//! A worker: the engine, the claimer and the watch over the living and the dead.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use cofferdam_ambient::random::secret_hex;
use cofferdam_contracts::id::ExecutorId;
use cofferdam_ledger::engine::{ESCALATION_WORKFLOW, RUN_WORKFLOW, TASK_WORKFLOW};
use cofferdam_ledger::executors::NewExecutor;
use cofferdam_ledger::{APP_VERSION, LedgerError};
use cofferdam_sandbox::{Host, HostConfig, HostError, OutsideNames, RemoteConfig};
use dbos::{Config, DBOS};
use tokio::sync::mpsc::unbounded_channel;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;

use crate::Flows;
use crate::claims::{Claimer, Workflows, claims};
use crate::driver::PlannerDrivers;
use crate::error::{Error, Result};
use crate::executor::Executor;
use crate::handoff::Handoff;
use crate::heartbeat::{Heartbeat, HeartbeatThread};
use crate::live_sandboxes::LiveSandboxes;
use crate::memory::MemoryBudget;
use crate::notify::Sender;
use crate::own_tasks::OwnTasks;
use crate::session_states::SessionStates;
use crate::takeover::{Takeover, reconcile};

/// Connections of the engine: its statements are short, so few serve many workflows, and its pool
/// keeps for ever what it has once opened, at 3 MB of the host each. Measured one
/// after the other on a noisy machine, without sandboxes: 98 runs/s with 3 of them, 125 with 8.
const ENGINE_CONNECTIONS: u32 = 8;

/// How long a worker that stops waits for the database in one go: a supervisor kills it after ten seconds.
const STOP_PATIENCE: Duration = Duration::from_secs(3);

/// How long it waits for the wipes of the sandboxes that tenants hold, and then for what seals paused ones: dozens take some
/// hundred ms.
const LIVE_PATIENCE: Duration = Duration::from_secs(2);

/// Why a worker does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// This host cannot hold sandboxes.
    #[error(transparent)]
    Host(#[from] HostError),
    /// The ledger, or what it has of this host.
    #[error(transparent)]
    Flows(#[from] Error),
    /// The workflow engine or the heartbeat did not start; the text says why.
    #[error("the workflow engine: {0}")]
    Engine(String),
}

/// How a worker is set up.
#[derive(Debug, Clone)]
pub struct WorkerConfig {
    /// Where its sandboxes live.
    pub state_dir: PathBuf,
    /// Host directories that tasks may be given.
    pub allowed_roots: Vec<PathBuf>,
    /// A particular runtime.
    pub runtime: Option<String>,
    /// Who holds the sandboxes, where that is `remote`.
    pub remote: Option<RemoteConfig>,
    /// Where names that a phase lists really are; it lists none by itself.
    pub egress_hosts: BTreeMap<String, SocketAddr>,
    /// MiB that its sandboxes may take together; by default nine tenths of the host's memory.
    pub memory_mb: Option<u64>,
}

/// A running worker.
#[derive(Debug)]
pub struct Worker {
    executor: Arc<Executor>,
    lives: Arc<dyn LiveSandboxes>,
    engine: DBOS,
    claimer: JoinHandle<()>,
    heartbeat: HeartbeatThread,
    takeover: JoinHandle<()>,
    session_states: JoinHandle<()>,
    cache: JoinHandle<()>,
    keys: JoinHandle<()>,
    aging: JoinHandle<()>,
    schedules: JoinHandle<()>,
    sender: Option<JoinHandle<()>>,
    fenced: watch::Receiver<bool>,
}

impl Worker {
    /// Looks at the host, reconciles it, launches the engine and starts to claim.
    pub async fn start(
        flows: Flows,
        lives: Arc<dyn LiveSandboxes>,
        drivers: Arc<dyn PlannerDrivers>,
        config: WorkerConfig,
    ) -> Result<Self, StartError> {
        let names = OutsideNames::new(config.egress_hosts.clone());
        let host_config = HostConfig {
            state_dir: config.state_dir,
            allowed_roots: config.allowed_roots,
            runtime: config.runtime,
            hosts: config.egress_hosts,
            remote: config.remote,
        };
        let host = Host::detect(host_config)?;
        let memory = MemoryBudget::new(host.facts().mem_mb, config.memory_mb);
        lives.host_found(&host, &memory);
        let open_host = host.with_allowed_roots(&[PathBuf::from("/")])?;
        let id = ExecutorId::parse(&format!("ex-{}", secret_hex(8)))
            .map_err(|e| StartError::Engine(e.to_string()))?;
        let executor = Arc::new(Executor {
            flows: flows.clone(),
            drivers,
            id: id.clone(),
            host_id: crate::host_id(),
            host,
            names,
            open_host,
            memory,
            session_states: SessionStates::default(),
            handed: Handoff::default(),
            promoted: Notify::new(),
            slots: Arc::default(),
            started: Arc::default(),
        });
        flows.runs.admission.executes_on(&executor.host_id, executor.host.facts());
        flows.runs.trees.executes_on(&executor.host_id, executor.host.facts());
        let pid = i32::try_from(std::process::id()).unwrap_or(i32::MAX);
        flows
            .ledger
            .executors()
            .join(&NewExecutor {
                id: &id,
                host_id: &executor.host_id,
                pid,
                classes: &executor.host.facts().strengths(),
            })
            .await
            .map_err(Error::from)?;
        reconcile(&executor).await?;
        if let Err(error) = flows.objects.sweep().await {
            // What is left costs room alone: the next start looks again.
            tracing::warn!(%error, "the artifact store was not swept");
        }
        lives.sweep(&executor.host).await?;
        let engine = DBOS::new(Config {
            app_version: Some(APP_VERSION.to_owned()),
            executor_id: Some(id.to_string()),
            max_connections: ENGINE_CONNECTIONS,
            migrate: false,
            // The claimer claims; the engine's own poller serves only its internal queue.
            listen_queues: Some(Vec::new()),
            notification_coalesce: Some(Duration::ZERO),
            ..Config::new("cofferdam", flows.ledger.place().engine_url())
        });
        let registered =
            register(&engine, &executor, &lives).map_err(|e| StartError::Engine(e.to_string()))?;
        engine.launch().await.map_err(|e| StartError::Engine(e.to_string()))?;
        let claimer = Arc::new(Claimer {
            ledger: flows.ledger,
            wakes: flows.wakes,
            id,
            registered,
            slots: Arc::clone(&executor.slots),
            started: Arc::clone(&executor.started),
        });
        let (starts, own) = unbounded_channel();
        let (slots, started) = (&executor.slots, &executor.started);
        lives.joined(OwnTasks::new(&executor.id, slots, started, starts));
        let sender = Sender::new(&executor.flows.webhooks, executor.id.as_str())
            .map(|sender| tokio::spawn(sender.run()));
        let heartbeat = Arc::new(Heartbeat::new(Arc::clone(&executor)));
        let (beating, fenced) = (heartbeat.start(), heartbeat.fences());
        let beating = beating.map_err(|e| StartError::Engine(format!("the heartbeat: {e}")))?;
        let takeover = Takeover { executor: Arc::clone(&executor), heartbeat };
        let session_states = {
            let executor = Arc::clone(&executor);
            tokio::spawn(async move { executor.session_states.run(&executor.flows.ledger).await })
        };
        let cache = {
            let bases = crate::cache::maintain(Arc::clone(&executor));
            let Flows { uploads, wakes, .. } = executor.flows.clone();
            let trees = uploads.maintain(wakes);
            tokio::spawn(async move {
                tokio::join!(bases, trees);
            })
        };
        let keys = lives.revocations();
        let aging = lives.aging(&executor.host);
        let schedules = tokio::spawn(flows.triggers.run());
        Ok(Self {
            executor,
            lives,
            cache,
            keys,
            aging,
            schedules,
            engine,
            session_states,
            sender,
            claimer: tokio::spawn(claims(claimer, own)),
            heartbeat: beating,
            takeover: tokio::spawn(takeover.run()),
            fenced,
        })
    }

    /// Resolves once this worker was declared dead, or must assume so: end the process then.
    pub async fn fenced(&self) {
        let mut fenced = self.fenced.clone();
        if fenced.wait_for(|f| *f).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Stops claiming, ends its sandboxes with evidence and gives its workflows back. Where the database
    /// does not answer it is not waited for: a leader gives the workflows back, and the next worker of this
    /// host finds the sessions.
    pub async fn stop(self) -> Result<()> {
        // What is queued from here on waits for another worker.
        self.lives.leaving();
        self.claimer.abort();
        self.takeover.abort();
        self.cache.abort();
        self.aging.abort();
        // What it was about to start is pending, and another worker's.
        self.schedules.abort();
        // What it claimed is due again when its claim runs out.
        if let Some(sender) = &self.sender {
            sender.abort();
        }
        // Their users hear why, and it is on record before the next start.
        self.lives.stop(&self.executor.id, LIVE_PATIENCE).await;
        // Dropping the steps in flight closes their sandboxes' streams, which ends the sandboxes.
        if tokio::time::timeout(STOP_PATIENCE, self.engine.shutdown()).await.is_err() {
            tracing::warn!("the engine does not end: the database does not answer");
        }
        self.keys.abort();
        self.session_states.abort();
        // It lived until here: others take nothing over that is about to be given back.
        self.heartbeat.stop().await;
        let given_back = give_back(&self.executor).await;
        // Also where the ledger is gone: this host's memory is not the ledger's.
        self.executor.host.leave();
        given_back
    }
}

async fn give_back(executor: &Executor) -> Result<()> {
    let (ledger, id) = (&executor.flows.ledger, &executor.id);
    let leave = async {
        ledger.executors().resign(id).await?;
        ledger.executors().leave(id).await
    };
    let silent = |_| LedgerError::silent();
    let given_back = tokio::time::timeout(STOP_PATIENCE, leave).await.map_err(silent).flatten()?;
    if given_back > 0 {
        tracing::info!(workflows = given_back, "unfinished workflows are queued again");
    }
    reconcile(executor).await
}

fn register(
    engine: &DBOS,
    executor: &Arc<Executor>,
    lives: &Arc<dyn LiveSandboxes>,
) -> dbos::Result<Workflows> {
    let ledger = executor.flows.ledger.clone();
    let run = {
        let executor = Arc::clone(executor);
        engine.register_workflow(RUN_WORKFLOW, move |()| {
            crate::run::run_workflow(Arc::clone(&executor))
        })?
    };
    let task = {
        let (executor, lives) = (Arc::clone(executor), Arc::clone(lives));
        engine.register_workflow(TASK_WORKFLOW, move |()| {
            crate::task::task_workflow(Arc::clone(&executor), Arc::clone(&lives))
        })?
    };
    let escalation = engine.register_workflow(ESCALATION_WORKFLOW, move |()| {
        crate::gates::wait::escalation_workflow(ledger.clone())
    })?;
    Ok(Workflows { run, task, escalation })
}
