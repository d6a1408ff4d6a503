//! Starting services one after another, and keeping hold of them.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use cofferdam_ambient::clock::{self, Stopwatch};
use cofferdam_ambient::random;
use cofferdam_contracts::service::{ServiceImage, ServiceReport};
use cofferdam_guest::wire::{CommandExit, ExecRequest, User};
use tokio::sync::mpsc;

use super::env::{self, HOST, POSTGRES_USER};
use super::probe;
use crate::agent::{Agent, AgentError, ExecOptions};
use crate::images::RootGuard;
use crate::spec::service::{self, PlannedService, Program, ServiceProgram};
use crate::spec::users;

/// Where services keep their data: in the sandbox's layer, so it is wiped with it.
const DATA: &str = "/var/lib/cofferdam";
/// Servers refuse to run as root. The skeleton of `envRef: host` calls this one `user`.
const UNPRIVILEGED: User = User { uid: 1_000, gid: 1_000 };
/// Between two questions to a service that is not up yet.
const ASK_AGAIN: Duration = Duration::from_millis(10);
/// What is kept of what a service says: its end, where the reasons stand.
const LOG_BYTES: usize = 256 * 1024;
/// What is read of each stream of a service at all: a flood costs its sandbox time, not the host.
const STREAM_BYTES: u64 = 256 * 1024 * 1024;
/// Last words in an error.
const WORDS_BYTES: usize = 2_000;
/// A service has no wall time of its own; this is ten years.
const FOR_EVER_MS: u64 = 315_360_000_000;
/// What a shell adds to a signal's number, and answers for a program that was not started.
const BY_SIGNAL: i32 = 128;
const UNSTARTED: i32 = 127;

/// Why a service is not there. The task does not start.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ServiceError {
    #[error("the service `{name}` ended with status {exit} before it was healthy: {words}")]
    Ended { name: String, exit: i32, words: String },
    #[error("the service `{name}` was not healthy within {ms} ms: {words}")]
    Late { name: String, ms: u64, words: String },
    #[error("the service `{name}` could not be prepared (status {exit}): {words}")]
    Prepare { name: String, exit: i32, words: String },
    #[error("the service `{name}` could not be started")]
    Agent { name: String, source: AgentError },
}

/// How a service fared, and the end of what it said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceEnd {
    /// For the result.
    pub report: ServiceReport,
    /// The last 256 KiB of its output, both streams as they came.
    pub log: Vec<u8>,
}

/// The running services of a sandbox.
#[derive(Debug, Default)]
pub(crate) struct Services {
    /// What its commands find.
    pub env: BTreeMap<String, String>,
    live: Vec<Live>,
    /// Keep the images that they run from.
    _roots: Vec<RootGuard>,
}

#[derive(Debug)]
struct Live {
    name: String,
    ready_ms: u64,
    image: Option<ServiceImage>,
    said: Arc<Mutex<LastWords>>,
}

#[derive(Debug, Default)]
struct LastWords {
    log: Vec<u8>,
    exit: Option<i32>,
}

impl LastWords {
    fn push(&mut self, bytes: &[u8]) {
        self.log.extend_from_slice(bytes);
        // Cut seldom, not at every piece.
        if self.log.len() > 2 * LOG_BYTES {
            let excess = self.log.len() - LOG_BYTES;
            self.log.drain(..excess);
        }
    }

    fn tail(&self, most: usize) -> &[u8] {
        self.log.get(self.log.len().saturating_sub(most)..).unwrap_or_default()
    }

    fn words(&self) -> String {
        let words = String::from_utf8_lossy(self.tail(WORDS_BYTES)).trim().to_owned();
        if words.is_empty() { "it said nothing".to_owned() } else { words }
    }
}

fn lock(said: &Mutex<LastWords>) -> MutexGuard<'_, LastWords> {
    said.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Services {
    /// None yet, on these images.
    pub(crate) fn on(roots: Vec<RootGuard>) -> Self {
        Self { _roots: roots, ..Self::default() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.live.is_empty()
    }

    /// How each fared so far.
    pub(crate) fn ends(&self) -> Vec<ServiceEnd> {
        self.live
            .iter()
            .map(|live| {
                let said = lock(&live.said);
                let Live { name, ready_ms, image, .. } = live;
                let report = ServiceReport {
                    name: name.clone(),
                    ready_ms: *ready_ms,
                    exit: said.exit,
                    image: image.clone(),
                };
                ServiceEnd { report, log: said.tail(LOG_BYTES).to_vec() }
            })
            .collect()
    }
}

/// Starts them in their order, each when the one before is healthy: a later one finds the variables
/// of the earlier ones.
pub(crate) async fn start(
    agent: &Agent,
    planned: &[PlannedService],
    services: &mut Services,
) -> Result<(), ServiceError> {
    for service in planned {
        let password = random::secret_hex(16);
        let clock = Stopwatch::start();
        let limit = Duration::from_millis(service.ready_ms);
        let said = Arc::new(Mutex::new(LastWords::default()));
        let started = tokio::time::timeout(limit, async {
            launch(agent, service, &password, &services.env, &said).await?;
            healthy(agent, service, &said).await
        });
        started.await.unwrap_or_else(|_| {
            let words = lock(&said).words();
            Err(ServiceError::Late { name: service.name.clone(), ms: service.ready_ms, words })
        })?;
        services.env.extend(env::of(service, &password));
        let ready_ms = clock.elapsed_ms();
        let image = service.root().map(|program| program.image.clone());
        services.live.push(Live { name: service.name.clone(), ready_ms, image, said });
    }
    Ok(())
}

/// Waits until it answers. One that has ended is not healthy, whoever answers on its port.
async fn healthy(
    agent: &Agent,
    service: &PlannedService,
    said: &Mutex<LastWords>,
) -> Result<(), ServiceError> {
    loop {
        let answered = probe::is_healthy(agent, service.port, service.probe).await;
        let (exit, words) = {
            let said = lock(said);
            (said.exit, said.words())
        };
        match exit {
            Some(exit) => {
                return Err(ServiceError::Ended { name: service.name.clone(), exit, words });
            }
            None if answered => return Ok(()),
            None => clock::sleep(ASK_AGAIN).await,
        }
    }
}

/// Prepares and starts one.
async fn launch(
    agent: &Agent,
    service: &PlannedService,
    password: &str,
    earlier: &BTreeMap<String, String>,
    said: &Arc<Mutex<LastWords>>,
) -> Result<(), ServiceError> {
    let fault = |source| ServiceError::Agent { name: service.name.clone(), source };
    let data = format!("{DATA}/{}", service.name);
    let options = ExecOptions { service: true, ..ExecOptions::default() };
    let (request, options, input) = match &service.program {
        Program::Postgres(bin) => {
            agent.files().mkdir(&data, 0o700, Some(UNPRIVILEGED)).await.map_err(fault)?;
            initdb(agent, service, bin, &data, password).await?;
            (unprivileged(postgres(bin, &data, service.port), "/"), options, None)
        }
        Program::Redis(program) => {
            agent.files().mkdir(&data, 0o700, Some(UNPRIVILEGED)).await.map_err(fault)?;
            let argv = vec![program.to_string_lossy().into_owned(), "-".to_owned()];
            let options = ExecOptions { stdin: true, ..options };
            (unprivileged(argv, &data), options, Some(redis(service.port)))
        }
        Program::Command { argv, env, user } => {
            let mut whole = earlier.clone();
            whole.extend(env.clone());
            let (user, groups) = users::told(user.as_ref());
            (ExecRequest { user, groups, ..exec(argv.clone(), "/", whole) }, options, None)
        }
        Program::Image(program) => {
            let ServiceProgram { argv, env, user, cwd, .. } = &**program;
            let mut whole = earlier.clone();
            whole.extend(env.clone());
            let (user, groups) = users::told(user.as_ref());
            (ExecRequest { user, groups, ..exec(argv.clone(), cwd, whole) }, options, None)
        }
    };
    let root = service.root().map(|_| service::root_of(&service.name));
    let running = agent.launch(root, request, options, String::new()).await.map_err(fault)?;
    let remote = running.remote();
    let kept = Arc::clone(said);
    // Ends with the sandbox: the connection closes under it.
    tokio::spawn(async move {
        let ended = running.follow(|_, bytes| lock(&kept).push(bytes)).await;
        if let Ok(end) = ended {
            let mut said = lock(&kept);
            if let CommandExit::Unstarted(reason) = &end.ended {
                said.push(reason.as_bytes());
            }
            said.exit = Some(status(&end.ended));
        }
    });
    if let Some(config) = input {
        let (pieces, body) = mpsc::channel(1);
        // The queue has room for the only piece, so this never waits.
        let _ = pieces.send(Bytes::from(config)).await;
        drop(pieces);
        // One that ends before it has read this is found by its status.
        let _ = remote.stdin(body).await;
    }
    Ok(())
}

fn status(ended: &CommandExit) -> i32 {
    match ended {
        CommandExit::Exit(code) => *code,
        CommandExit::Signal(signal) => BY_SIGNAL.saturating_add(*signal),
        CommandExit::Unstarted(_) => UNSTARTED,
    }
}

fn exec(argv: Vec<String>, cwd: &str, mut env: BTreeMap<String, String>) -> ExecRequest {
    for (name, value) in [("LANG", "C.UTF-8"), ("PATH", "/usr/local/bin:/usr/bin:/bin")] {
        env.entry(name.to_owned()).or_insert_with(|| value.to_owned());
    }
    let (timeout_ms, stream_limit_bytes) = (FOR_EVER_MS, STREAM_BYTES);
    ExecRequest {
        argv,
        env,
        cwd: cwd.to_owned(),
        timeout_ms,
        stream_limit_bytes,
        user: None,
        groups: Vec::new(),
        stdin_file: None,
        jail: None,
    }
}

fn unprivileged(argv: Vec<String>, cwd: &str) -> ExecRequest {
    ExecRequest { user: Some(UNPRIVILEGED), ..exec(argv, cwd, BTreeMap::new()) }
}

/// Makes the database, with the password of its superuser.
async fn initdb(
    agent: &Agent,
    service: &PlannedService,
    bin: &Path,
    data: &str,
    password: &str,
) -> Result<(), ServiceError> {
    let fault = |source| ServiceError::Agent { name: service.name.clone(), source };
    let secret = format!("{DATA}/{}.initial", service.name);
    agent.files().put(&secret, 0o644, Bytes::from(format!("{password}\n"))).await.map_err(fault)?;
    let program = bin.join("initdb").to_string_lossy().into_owned();
    let mut argv = vec![program, format!("--pgdata={data}"), format!("--pwfile={secret}")];
    // Small segments: the layer is memory. No sync: what a crash would lose is wiped anyway.
    let user = format!("--username={POSTGRES_USER}");
    for word in ["--auth=scram-sha-256", "--encoding=UTF8", "--locale=C", "--no-sync"] {
        argv.push(word.to_owned());
    }
    argv.extend([user, "--wal-segsize=1".to_owned(), "--no-instructions".to_owned()]);
    let mut said = LastWords::default();
    let running =
        agent.start(unprivileged(argv, "/"), ExecOptions::default()).await.map_err(fault)?;
    let end = running.follow(|_, bytes| said.push(bytes)).await.map_err(fault)?;
    agent.files().remove(&secret, false).await.map_err(fault)?;
    match status(&end.ended) {
        0 => Ok(()),
        exit => {
            if let CommandExit::Unstarted(reason) = &end.ended {
                said.push(reason.as_bytes());
            }
            Err(ServiceError::Prepare { name: service.name.clone(), exit, words: said.words() })
        }
    }
}

/// Small, and without the care for a crash that a sandbox's data does not need.
fn postgres(bin: &Path, data: &str, port: u16) -> Vec<String> {
    let mut argv =
        vec![bin.join("postgres").to_string_lossy().into_owned(), "-D".to_owned(), data.to_owned()];
    for setting in [
        format!("listen_addresses={HOST}"),
        format!("port={port}"),
        format!("unix_socket_directories={data}"),
        "max_connections=64".to_owned(),
        "shared_buffers=16MB".to_owned(),
        "min_wal_size=2MB".to_owned(),
        "max_wal_size=32MB".to_owned(),
        "wal_level=minimal".to_owned(),
        "max_wal_senders=0".to_owned(),
        "fsync=off".to_owned(),
        "synchronous_commit=off".to_owned(),
        "full_page_writes=off".to_owned(),
        "jit=off".to_owned(),
        "huge_pages=off".to_owned(),
    ] {
        argv.extend(["-c".to_owned(), setting]);
    }
    argv
}

fn redis(port: u16) -> String {
    format!(
        "bind {HOST}\nport {port}\nsave \"\"\nappendonly no\n\
         daemonize no\nlogfile \"\"\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_keeps_its_end_and_stays_small() {
        let mut said = LastWords::default();
        for _ in 0..1_000 {
            said.push(&[b'x'; 4_096]);
        }
        said.push(b"the reason");
        assert!(said.log.len() <= 2 * LOG_BYTES + 4_096);
        assert_eq!(said.tail(LOG_BYTES).len(), LOG_BYTES);
        assert!(said.words().ends_with("the reason"));
        assert_eq!(LastWords::default().words(), "it said nothing");
    }
}
