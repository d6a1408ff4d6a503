//! A node in this process: database, ledger, and as asked for, worker and API.

use std::path::{Path, PathBuf};

use anyhow::Context;
use cofferdam_ambient::random::Ids;
use cofferdam_flows::{Flows, Reach, Worker, WorkerConfig};
use cofferdam_ledger::Ledger;
use cofferdam_ledger::cluster::Cluster;
use cofferdam_sandbox::Class;
use cofferdam_server::{Doors, Server};
use nix::unistd::User;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::at::At;
use super::exit::{Exit, Misuse};
use super::worker::WorkerArgs;
use super::{output, place, signing, state, user, vault};

/// What this process does.
#[derive(Debug)]
pub(crate) struct Parts<'a> {
    /// Settings of a worker, if this process executes runs.
    pub worker: Option<&'a WorkerArgs>,
    /// Serves the API here.
    pub listen: Option<Doors>,
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
    bound: Option<Server>,
    serving: Option<Serving>,
    url: Option<String>,
    /// The host's own admin key.
    pub key: String,
    is_signing: bool,
}

#[derive(Debug)]
struct Serving {
    end: oneshot::Sender<()>,
    task: JoinHandle<std::io::Result<()>>,
}

impl Node {
    /// Starts everything that is asked for; when it returns, all of it is ready and the API's address is bound.
    pub(crate) async fn start(at: &At, dir: &Path, parts: Parts<'_>) -> anyhow::Result<Self> {
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
        if !ledger.place_is_kept().await? {
            // What only reads does no harm to the original; who executes would take its workers for dead.
            if parts.worker.is_some() {
                return Err(Misuse(COPIED.to_owned()).into());
            }
            output::note(
                "this database is a copy of another one; nothing executes on it before `cofferdam adopt`",
            );
        }
        let wakes = ledger.listen().await?;
        let reach = parts.reach();
        let signer = signing::signer(&ledger, dir).await?;
        let flows = Flows::new(ledger.clone(), wakes, Ids::from_env())
            .with_signing(signer, reach)
            .with_vault(vault::vault(at, &ledger, dir).await?)
            .with_roots(parts.allow_dirs, dir)
            .with_snapshots(&dir.join("snapshots"));
        let is_signing = flows.is_signing();
        let key = admin_key(&flows, dir).await?;
        let worker = match parts.worker {
            None => None,
            Some(args) => Some(Worker::start(flows.clone(), config(args, dir)?).await?),
        };
        let scheme = parts.listen.as_ref().map(|d| if d.tls.is_some() { "https" } else { "http" });
        let bound = match parts.listen {
            None => None,
            Some(doors) => Some(Server::bind(doors, flows).await?),
        };
        let url = scheme.zip(bound.as_ref()).map(|(s, server)| format!("{s}://{}", server.addr()));
        Ok(Self { cluster, ledger, worker, bound, serving: None, url, key, is_signing })
    }

    /// Begins to answer at the address that is bound since the start, as this user where one is named:
    /// nothing that a stranger sent is read before.
    pub(crate) fn serve(&mut self, user: Option<&User>) -> anyhow::Result<()> {
        if let Some(user) = user {
            let given = self.ledger.give(user.uid.as_raw(), user.gid.as_raw());
            given.with_context(|| format!("cannot let {} reach the database", user.name))?;
            user::become_user(user)?;
        }
        self.serving = self.bound.take().map(|server| {
            let (end, ended) = oneshot::channel();
            let task = tokio::spawn(server.run(async move {
                let _ = ended.await;
            }));
            Serving { end, task }
        });
        Ok(())
    }

    /// The API's address.
    pub(crate) fn url(&self) -> Option<&str> {
        self.url.as_deref()
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
        if let Some(server) = self.serving {
            let _ = server.end.send(());
            // A follower's stream may stay open for ever; the process does not wait for it.
            let _ = tokio::time::timeout(std::time::Duration::from_millis(500), server.task).await;
        }
        // What follows is done also where the worker's goodbye was not heard.
        let stopped = match self.worker {
            Some(worker) => worker.stop().await,
            None => Ok(()),
        };
        // A connection to a database that is silent says no goodbye.
        let _ = tokio::time::timeout(CLOSING, self.ledger.close()).await;
        if let Some(cluster) = self.cluster {
            cluster.stop().await?;
        }
        Ok(stopped?)
    }
}

/// A dump that was restored, or a clone, while the original may run.
const COPIED: &str = "the database is a copy of another one: its runs, sandboxes and webhooks are the original's, and none \
    of them was touched. If the original is gone and this one takes its place: cofferdam adopt, with the same --db. To begin \
    anew: give an empty database";

/// `adopt`: the state directory, and the database, take the places of their originals, which must be gone.
pub(crate) async fn adopt(at: &At) -> anyhow::Result<Exit> {
    let dir = state::path(at)?;
    place::adopt(&dir)?;
    let cluster = match &at.db {
        Some(_) => None,
        None => Some(Cluster::start(&dir).await.context("the private database did not start")?),
    };
    let url = at.db.clone().or_else(|| cluster.as_ref().map(Cluster::url)).unwrap_or_default();
    let outcome = adopt_database(&url).await;
    if let Some(cluster) = cluster {
        cluster.stop().await?;
    }
    outcome.map(|()| Exit::Ok)
}

async fn adopt_database(url: &str) -> anyhow::Result<()> {
    let ledger = Ledger::connect(url).await.context("cannot connect to the database")?;
    ledger.migrate().await?;
    if !ledger.place_is_kept().await? {
        // Workers are refused on a copy: whoever beats here beat in the original a moment ago, or is older.
        if ledger.executors().heard().await? > 0 {
            let why = "the database was not adopted: one of its workers is alive; stop the original's workers first";
            return Err(Misuse(why.to_owned()).into());
        }
        ledger.place_adopt().await?;
        output::line("the database replaces its original");
    }
    ledger.close().await;
    Ok(())
}

/// How long the end waits for connections to close.
const CLOSING: std::time::Duration = std::time::Duration::from_secs(2);

/// The runtime that is no program of this host; only then is its key read.
const REMOTE: &str = Class::Remote.as_str();

fn config(args: &WorkerArgs, dir: &Path) -> anyhow::Result<WorkerConfig> {
    let allowed_roots: Vec<PathBuf> = args.allow_dirs.clone();
    let is_remote = args.runtime.as_deref() == Some(REMOTE);
    Ok(WorkerConfig {
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
        && flows.ledger.keys().principal(&key).await?.is_some()
    {
        return Ok(key);
    }
    let created = flows.key_local().await?;
    state::key_write(dir, &created.key)?;
    Ok(created.key)
}

/// The URL that everything above connects to. A private database runs only while somebody uses it.
pub(crate) async fn database(at: &At, superuser: bool) -> anyhow::Result<Exit> {
    if let Some(url) = &at.db {
        if superuser {
            let why =
                "--superuser works for the private database only; DATABASE_URL has its own roles";
            return Err(Misuse(why.into()).into());
        }
        output::line(url);
        return Ok(Exit::Ok);
    }
    let dir = state::dir(at)?;
    let cluster = Cluster::start(&dir).await.context("the private database did not start")?;
    output::line(&if superuser { cluster.superuser_url() } else { cluster.url() });
    output::note(
        "the database answers while `cofferdam up` or another command on this state directory runs",
    );
    cluster.stop().await?;
    Ok(Exit::Ok)
}
