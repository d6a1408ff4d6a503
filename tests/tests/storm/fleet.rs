//! Three workers and a shim on a database elsewhere, each with a wire of its own to it.

use std::path::PathBuf;
use std::sync::Arc;

use cofferdam_tests::postgres::Postgres;
use cofferdam_tests::{Home, Server};
use tempfile::TempDir;

use crate::storm::front::Front;
use crate::support::proxy::Proxy;

/// How many there are when all is well.
pub const WORKERS: usize = 3;

/// A worker and its wire.
pub struct Worker {
    pub server: Server,
    pub wire: Proxy,
}

/// Fields end in this order.
pub struct Fleet {
    pub front: Arc<Front>,
    pub workers: Vec<Worker>,
    pub shim: Server,
    pub shim_wire: Proxy,
    pub home: Home,
    pub database: Postgres,
    shared: TempDir,
}

impl Fleet {
    pub async fn start() -> Self {
        let database = Postgres::start().await;
        let home = Home::on(&database.url());
        let shared = tempfile::Builder::new().prefix("cofferdam-effects-").tempdir().unwrap();
        let shim_wire = Proxy::to_server(&database).await;
        let shim = start_shim(&home, &shim_wire);
        let front = Arc::new(Front::to(&shim));
        let mut fleet =
            Self { front, workers: Vec::new(), shim, shim_wire, home, database, shared };
        for _ in 0..WORKERS {
            let worker = fleet.new_worker().await;
            fleet.workers.push(worker);
        }
        fleet
    }

    /// A host that was not there before.
    pub async fn new_worker(&self) -> Worker {
        let wire = Proxy::to_server(&self.database).await;
        Worker { server: start_worker(&self.home, &wire), wire }
    }

    /// Starts what has ended, as a service manager does.
    pub fn revive(&mut self) {
        for worker in &mut self.workers {
            if worker.server.has_ended() {
                worker.server = start_worker(&self.home, &worker.wire);
            }
        }
        if self.shim.has_ended() {
            self.shim = start_shim(&self.home, &self.shim_wire);
            self.front.moved(&self.shim);
        }
    }

    /// Every wire there is.
    pub fn wires(&self) -> impl Iterator<Item = &Proxy> {
        self.workers.iter().map(|worker| &worker.wire).chain([&self.shim_wire])
    }

    /// The directory that tasks append to.
    pub fn effects_dir(&self) -> PathBuf {
        self.shared.path().to_path_buf()
    }

    /// What they appended, a line each.
    pub fn effects(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.shared.path().join("log")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }
}

fn start_worker(home: &Home, wire: &Proxy) -> Server {
    Server::start(home, &["worker", "--db", wire.url()], &[])
}

fn start_shim(home: &Home, wire: &Proxy) -> Server {
    Server::start(home, &["shim", "--listen", "127.0.0.1:0", "--db", wire.url()], &[])
}
