//! A node in this process: database, ledger, and as asked for, worker and API.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::Context;
use cofferdam_ambient::random::Ids;
use cofferdam_flows::{Flows, Reach, Worker, WorkerConfig};
use cofferdam_ledger::Ledger;
use cofferdam_ledger::cluster::Cluster;
use cofferdam_sandbox::Class;
use cofferdam_server::{Auth, Server};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::args::{At, WorkerArgs};
use super::exit::Exit;
use super::{output, signing, state};

/// What this process does.
#[derive(Debug, Clone)]
pub(crate) struct Parts<'a> {
    /// Executes.
    pub worker: Option<&'a WorkerArgs>,
    /// Serves the API here.
    pub listen: Option<(SocketAddr, Auth)>,
    /// Host directories that every tenant may name: asked of by whoever accepts work, too.
    pub allow_dirs: &'a [PathBuf],
    /// Lets webhooks reach private addresses.
    pub webhook_private: bool,
}

impl Parts<'_> {
    fn reach(&self) -> Reach {
        if self.webhook_private { Reach::Private } else { Reach::Public }
    }
}

/// A running node.
#[derive(Debug)]
pub(crate) struct Node {
    cluster: Option<Cluster>,
    ledger: Ledger,
    pub worker: Option<Worker>,
    server: Option<Serving>,
    /// The host's own admin key.
    pub key: String,
    is_signing: bool,
}

#[derive(Debug)]
struct Serving {
    addr: SocketAddr,
    end: oneshot::Sender<()>,
    task: JoinHandle<std::io::Result<()>>,
}

impl Node {
    /// Starts everything that is asked for; when it returns, it is ready.
    pub(crate) async fn start(at: &At, dir: &Path, parts: &Parts<'_>) -> anyhow::Result<Self> {
        let (cluster, url) = match &at.db {
            Some(url) => (None, url.clone()),
            None => {
                let cluster =
                    Cluster::start(dir).await.context("the private database did not start")?;
                let url = cluster.url();
                (Some(cluster), url)
            }
        };
        let ledger = Ledger::connect(&url).await.context("cannot connect to the database")?;
        ledger.migrate().await?;
        let wakes = ledger.listen().await?;
        let reach = parts.reach();
        let signer = signing::signer(&ledger, dir).await?;
        let flows = Flows::new(ledger.clone(), wakes, Ids::from_env())
            .with_signing(signer, reach)
            .with_roots(parts.allow_dirs);
        let is_signing = flows.is_signing();
        let key = admin_key(&flows, dir).await?;
        let worker = match parts.worker {
            None => None,
            Some(args) => Some(Worker::start(flows.clone(), config(args, dir, &url)?).await?),
        };
        let server = match parts.listen {
            None => None,
            Some((addr, auth)) => {
                let server = Server::bind(addr, flows, auth).await?;
                let (end, ended) = oneshot::channel();
                let addr = server.addr();
                let task = tokio::spawn(server.run(async move {
                    let _ = ended.await;
                }));
                Some(Serving { addr, end, task })
            }
        };
        Ok(Self { cluster, ledger, worker, server, key, is_signing })
    }

    /// The API's address.
    pub(crate) fn url(&self) -> Option<String> {
        self.server.as_ref().map(|s| format!("http://{}", s.addr))
    }

    pub(crate) fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Whether webhooks and reply links work here.
    pub(crate) fn is_signing(&self) -> bool {
        self.is_signing
    }

    /// Stops in the order of dependence: API, worker, connections, database.
    pub(crate) async fn stop(self) -> anyhow::Result<()> {
        if let Some(server) = self.server {
            let _ = server.end.send(());
            // A follower's stream may stay open for ever; the process does not wait for it.
            let _ = tokio::time::timeout(std::time::Duration::from_millis(500), server.task).await;
        }
        if let Some(worker) = self.worker {
            worker.stop().await?;
        }
        self.ledger.close().await;
        if let Some(cluster) = self.cluster {
            cluster.stop().await?;
        }
        Ok(())
    }
}

/// The runtime that is no program of this host; only then is its key read.
const REMOTE: &str = Class::Remote.as_str();

fn config(args: &WorkerArgs, dir: &Path, url: &str) -> anyhow::Result<WorkerConfig> {
    let allowed_roots: Vec<PathBuf> = args.allow_dirs.clone();
    let is_remote = args.runtime.as_deref() == Some(REMOTE);
    Ok(WorkerConfig {
        database_url: url.to_owned(),
        state_dir: dir.to_path_buf(),
        allowed_roots,
        runtime: args.runtime.clone(),
        remote: if is_remote { args.remote.config()? } else { None },
        egress_hosts: args.egress_hosts.iter().cloned().collect(),
        memory_mb: args.memory_mb,
    })
}

/// The admin key of the state directory; made on the first start, and again where its file is gone
/// or belongs to another database.
async fn admin_key(flows: &Flows, dir: &Path) -> anyhow::Result<String> {
    if let Some(key) = state::key_read(dir)
        && flows.ledger.key_principal(&key).await?.is_some()
    {
        return Ok(key);
    }
    let created = flows.key_local().await?;
    state::key_write(dir, &created.key)?;
    Ok(created.key)
}

/// The URL that everything above connects to. A private database runs only while somebody uses it.
pub(crate) async fn database(at: &At) -> anyhow::Result<Exit> {
    if let Some(url) = &at.db {
        output::line(url);
        return Ok(Exit::Ok);
    }
    let dir = state::dir(at)?;
    let cluster = Cluster::start(&dir).await.context("the private database did not start")?;
    output::line(&cluster.url());
    output::note(
        "it answers while `cofferdam up`, or any other command on this state directory, runs",
    );
    cluster.stop().await?;
    Ok(Exit::Ok)
}
