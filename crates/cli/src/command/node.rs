//! A node in this process: database, ledger, and as asked for, worker and API.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use cofferdam_ambient::random::Ids;
use cofferdam_e2b::E2b;
use cofferdam_flows::objects::Store;
use cofferdam_flows::{Flows, FlowsSetup, Reach, Worker, WorkerConfig};
use cofferdam_http::{Listeners, Server, ServerConfig};
use cofferdam_ledger::Ledger;
use cofferdam_ledger::cluster::Cluster;
use cofferdam_ledger::stored_files::StateDirectory;
use cofferdam_live::{Comparison, Live, Snapshots};
use cofferdam_planner::Planner;
use cofferdam_sandbox::Class;
use cofferdam_server::RouterApi;
use nix::unistd::User;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::database::{self, StateDatabase};
use super::exit::{Exit, Misuse};
use super::locations::Locations;
use super::worker::WorkerArgs;
use super::{directory_identity, local, output, signing_key, state, strict, user, vault};

/// What this process does.
#[derive(Debug)]
pub(crate) struct Parts<'a> {
    /// Settings of a worker, if this process executes runs.
    pub worker: Option<&'a WorkerArgs>,
    /// Serves the API here.
    pub listen: Option<ServerConfig>,
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

/// Where large artifacts lie. A database that others share has artifacts of other hosts, which this one's directory would not have.
fn artifact_store(at: &Locations, dir: &Path) -> anyhow::Result<Option<Store>> {
    let place = match (&at.objects, &at.db) {
        (Some(place), _) => place.clone(),
        (None, None) => dir.join(OBJECTS),
        (None, Some(_)) => return Ok(None),
    };
    // A relative path would be another one for a process that starts elsewhere.
    let place = std::path::absolute(&place).unwrap_or(place);
    let store = Store::open(&place);
    store.map(Some).with_context(|| format!("cannot use the artifact store {}", place.display()))
}

/// Where that is in a state directory.
const OBJECTS: &str = "objects";

/// A running node.
#[derive(Debug)]
pub(crate) struct Node {
    cluster: Option<Cluster>,
    ledger: Ledger,
    pub worker: Option<Worker>,
    flows: Flows,
    /// The database is a copy, whose original may run.
    is_copy: bool,
    cleaning: Option<JoinHandle<()>>,
    bound: Option<Server>,
    serving: Option<ApiTask>,
    url: Option<String>,
    /// The host's own admin key.
    pub key: String,
    is_signing: bool,
}

#[derive(Debug)]
struct ApiTask {
    end: oneshot::Sender<()>,
    task: JoinHandle<std::io::Result<()>>,
}

impl Node {
    /// Starts everything that is asked for; when it returns, all of it is ready and the API's address is bound.
    pub(crate) async fn start(
        at: &Locations,
        dir: &Path,
        parts: Parts<'_>,
    ) -> anyhow::Result<Self> {
        // Before anything is opened: what lacks is found out by who starts it, not by who submits.
        let is_strict = strict::check(parts.worker)?;
        let StateDatabase { ledger, cluster, .. } = database::open(at, dir).await?;
        let is_copy = !ledger.place().is_same().await?;
        if is_copy {
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
        let signer = signing_key::signer(&ledger, dir).await?;
        let flows = Flows::new(FlowsSetup {
            signer,
            vault: vault::vault(at, &ledger, dir).await?,
            store: artifact_store(at, dir)?,
            reach,
            roots: parts.allow_dirs,
            state_dir: Some(dir),
            is_strict,
            ..FlowsSetup::of(ledger.clone(), wakes, Ids::from_env())
        });
        let live = Live::new(&flows, dir);
        let is_signing = flows.webhooks.is_signing();
        let key = admin_key(&flows, dir).await?;
        if parts.worker.is_some() {
            rows_moved(&ledger, dir).await?;
        }
        let worker = match parts.worker {
            None => None,
            Some(args) => {
                let (lives, drivers) = (Arc::new(live.clone()), Arc::new(Planner::new(&ledger)));
                Some(Worker::start(flows.clone(), lives, drivers, config(args, dir)?).await?)
            }
        };
        let scheme = parts.listen.as_ref().map(|d| if d.tls.is_some() { "https" } else { "http" });
        let bound = match parts.listen {
            None => None,
            Some(doors) => {
                let listeners = Listeners::bind(doors).await?;
                let (site, live) = (listeners.site(), live.client());
                let e2b = E2b::new(flows.clone(), live.clone(), site.clone());
                // Ours answers whatever is left.
                let ours = RouterApi::new(flows.clone(), live, site);
                Some(listeners.with(vec![Arc::new(e2b), Arc::new(ours)]))
            }
        };
        let url = scheme.zip(bound.as_ref()).map(|(s, server)| format!("{s}://{}", server.addr()));
        Ok(Self {
            cluster,
            ledger,
            worker,
            flows,
            is_copy,
            cleaning: None,
            bound,
            serving: None,
            url,
            key,
            is_signing,
        })
    }

    /// Begins to answer at the address that is bound since the start, as this user where one is named:
    /// nothing that a stranger sent is read before.
    pub(crate) fn serve(&mut self, user: Option<&User>) -> anyhow::Result<()> {
        if let Some(user) = user {
            let given = self.ledger.place().give(user.uid.as_raw(), user.gid.as_raw());
            given.with_context(|| format!("cannot let {} reach the database", user.name))?;
            user::become_user(user)?;
        }
        let ledger = self.ledger.clone();
        self.serving = self.bound.take().map(|server| {
            let (end, ended) = oneshot::channel();
            let probe = move || cofferdam_server::probe(&ledger).map_err(std::io::Error::other);
            let task = tokio::spawn(server.run(probe, async move {
                let _ = ended.await;
            }));
            ApiTask { end, task }
        });
        Ok(())
    }

    /// Looks for what no run needs in the state directory of a process that only serves; a worker does it itself.
    pub(crate) fn clean(&mut self) {
        // What runs of the original need is not on record in a copy.
        if !self.is_copy && self.worker.is_none() {
            let Flows { uploads, wakes, .. } = self.flows.clone();
            self.cleaning = Some(tokio::spawn(uploads.maintain(wakes)));
        }
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
        if let Some(cleaning) = self.cleaning {
            cleaning.abort();
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
pub(crate) async fn adopt(at: &Locations) -> anyhow::Result<Exit> {
    let dir = state::path(at)?;
    directory_identity::adopt(&dir)?;
    database::adopt(at, &dir).await?;
    if local::find(&dir).await?.is_some() {
        output::note(
            "its server runs, so files and rows were not compared; stop it and adopt again to do so",
        );
        return Ok(Exit::Ok);
    }
    let opened = database::open(at, &dir).await?;
    let compared = compared(&opened.ledger, &dir).await;
    opened.close().await?;
    compared.map(|()| Exit::Ok)
}

/// Rows of locations that the state directory had before name this one.
async fn rows_moved(ledger: &Ledger, dir: &Path) -> anyhow::Result<i64> {
    let formers = directory_identity::formers(dir)?;
    if formers.is_empty() {
        return Ok(0);
    }
    let (host, here) = (cofferdam_flows::host_id(), dir.display().to_string());
    let (mut moved, mut is_settled) = (0_i64, true);
    for former in formers {
        // Of a directory that stayed where it is, this is the only one.
        let is_copied = former.host != host && former.path != dir;
        if is_copied && ledger.executors().live_count_on(&former.host).await? > 0 {
            let path = former.path.display();
            output::note(&format!(
                "a worker of the host that {path} was on is alive: what is on record there stays its own"
            ));
            is_settled = false;
            continue;
        }
        let path = former.path.display().to_string();
        let from = StateDirectory { host: &former.host, path: &path };
        let to = StateDirectory { host: &host, path: &here };
        let of = ledger.state_directory_moves(from, to).await?;
        moved = moved.saturating_add(of);
    }
    if is_settled {
        directory_identity::settled(dir)?;
    }
    Ok(moved)
}

/// Says what the database and the disk do not share, once rows name this location.
async fn compared(ledger: &Ledger, dir: &Path) -> anyhow::Result<()> {
    let moved = rows_moved(ledger, dir).await?;
    let wakes = ledger.listen().await?;
    let flows = Flows::new(FlowsSetup::of(ledger.clone(), wakes, Ids::from_env()));
    let found = Snapshots::of(&Live::new(&flows, dir)).compared(Comparison::Adoption).await?;
    let moved = moved.saturating_add(found.moved);
    if moved > 0 {
        output::line(&format!("{moved} kept files are recorded at this place now"));
    }
    for (row, given_up) in &found.missing {
        let of = if row.kind == "archive" { "the template" } else { "the sandbox" };
        let what = match (given_up, row.kind.as_str()) {
            (false, _) => "it is in use on record; start a server, stop it, and adopt again",
            (true, "pause") => "it was given up, and its sandbox has ended",
            (true, _) => "it was given up",
        };
        let (id, kind, whose) = (&row.id, &row.kind, &row.of);
        output::line(&format!("the file of the {kind} {id} of {of} {whose} is missing: {what}"));
    }
    for path in &found.unknown {
        let path = path.display();
        output::line(&format!(
            "no row knows the file {path}: it was set aside, and is removed in two weeks"
        ));
    }
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

/// The admin key of the state directory; made on the first start, and again where its file is gone or its key revoked:
/// then the one before is revoked with it.
async fn admin_key(flows: &Flows, dir: &Path) -> anyhow::Result<String> {
    // Two that begin at once take turns: the second one finds the first one's.
    let _turn = state::turn(dir).await?;
    let place = directory_identity::id(dir)?;
    let kept = state::key_read(dir)?;
    if let Some(key) = &kept
        && let Some(found) = flows.ledger.keys().principal(key).await?
    {
        if let Some(place) = &place {
            flows.ledger.keys().of_state_dir(&found.key_id, place).await?;
        }
        return Ok(key.clone());
    }
    if let Some(key) = kept {
        let kept = state::key_set_aside(dir, &key)?;
        output::note(&format!("admin.key works no more and is kept in {kept}; there is a new one"));
    }
    let created = flows.keys.local(place.as_deref()).await?;
    state::key_write(dir, &created.key)?;
    Ok(created.key)
}

/// The URL that everything above connects to. A private database runs only while somebody uses it.
pub(crate) async fn print_url(at: &Locations, superuser: bool) -> anyhow::Result<Exit> {
    if at.db.is_some() && superuser {
        let why = "--superuser works for the private database only; DATABASE_URL has its own roles";
        return Err(Misuse(why.into()).into());
    }
    let opened = database::look(at, &state::dir(at)?).await?;
    match (&opened.cluster, superuser) {
        (Some(cluster), true) => output::line(&cluster.superuser_url()),
        _ => output::line(&opened.url),
    }
    if opened.cluster.is_some() {
        output::note(
            "the database answers while `cofferdam up` or another command on this state directory runs",
        );
    }
    opened.close().await?;
    Ok(Exit::Ok)
}
