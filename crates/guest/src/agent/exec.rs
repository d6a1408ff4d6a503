//! Runs one command and streams what it prints.
//!
//! ```text
//! start -> { exits | wall time out | host hangs up } -> sweep -> pipes drain -> end frame
//! ```
//! The command ends when its first process ends. Whatever it left running is killed then, so the
//! pipes close and the end frame really is the last word.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::Arc;

use bytes::Bytes;
use cofferdam_guest::frame::{self, Kind};
use cofferdam_guest::wire::{ALL_BYTES, CommandExit, ExecEnd, ExecRequest, LimitCounters};
use rustix::process::Pid;
use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe::Receiver;
use tokio::sync::mpsc::Sender;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;

use crate::machine::{self, LayerWatch};

use super::clock::{Stopwatch, within_ms};
use super::identity;
use super::jail::{self, JailCommand, Watch};
use super::metrics;
use super::outlet::Outlet;
use super::reaper::{ChildExit, Reaper};

/// One read of a pipe. A pipe holds 64 KiB; a quarter keeps two streams small in the agent.
const READ_BYTES: usize = 16 * 1024;
/// How long the pipes may take to drain once every writer is dead: the host reads as fast as it
/// can, so this is only reached when the host is overloaded.
const DRAIN_MS: u64 = 10_000;
/// How long output is waited for after the end of a command whose children may hold its pipes. It is read and dropped
/// from then on, so that none of them ends by a broken pipe.
const LEFT_DRAIN_MS: u64 = 1_000;
/// How long output is waited for after a death by signal: what is in the pipes is read within it.
const KILLED_DRAIN_MS: u64 = 100;
/// How long a killed process may take to die: beyond it, it is stuck in the kernel.
const DEATH_MS: u64 = 5_000;
/// Where commands are looked for when the environment does not say.
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Why a command did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("the command is empty")]
    Empty,
    #[error("the working directory {0:?} does not exist or is not a directory")]
    Cwd(String),
    #[error("{0:?} was not found in PATH")]
    NotFound(String),
    #[error("{program:?} could not be started")]
    Spawn { program: String, source: io::Error },
    #[error("a terminal could not be made")]
    Terminal(#[source] io::Error),
    #[error("the id {0} is in use")]
    Busy(u64),
    #[error("{path:?} cannot be its input")]
    Input { path: String, source: io::Error },
    #[error("its jail could not be made")]
    Jail(#[source] io::Error),
}

impl StartError {
    /// Whether the program is there, and is none that may be executed.
    fn is_denied(&self) -> bool {
        let Self::Spawn { source, .. } = self else { return false };
        matches!(source.raw_os_error(), Some(libc::EACCES | libc::ENOEXEC))
    }
}

/// A command that runs, and where what it prints comes from.
pub struct CommandProcess {
    pub pid: Pid,
    pub exit: oneshot::Receiver<ChildExit>,
    pub stdout: Option<Receiver>,
    pub stderr: Option<Receiver>,
    pub clock: Stopwatch,
    /// Where it is in a jail.
    pub watch: Option<Watch>,
}

/// Runs the command; the last frame is always an [`ExecEnd`] unless the host hung up.
pub async fn exec(reaper: Arc<Reaper>, request: ExecRequest, frames: Sender<Bytes>) {
    let started = prepare(&request).and_then(|command| begin(&reaper, &request, command));
    follow(&reaper, &request, started, false, &Arc::new(Outlet::to(frames))).await;
}

/// Starts it, in its jail where it has one.
pub fn begin(
    reaper: &Reaper,
    request: &ExecRequest,
    mut command: Command,
) -> Result<CommandProcess, StartError> {
    let Some(wanted) = &request.jail else {
        return Ok(start(reaper, &mut command, false)?.0);
    };
    let path = request.env.get("PATH").map_or("", String::as_str);
    let JailCommand { command: mut jailed, socket, theirs, rules } =
        jail::around(&command, wanted, path).map_err(StartError::Jail)?;
    jailed.stdin(input(request)?);
    drop_to(&mut jailed, request);
    let watch = Watch::start(socket, rules, wanted.max_execs).map_err(StartError::Jail)?;
    let (mut started, _) = start(reaper, &mut jailed, false)?;
    drop(theirs);
    started.watch = Some(watch);
    Ok(started)
}

/// Its standard input.
fn input(request: &ExecRequest) -> Result<Stdio, StartError> {
    let Some(path) = &request.stdin_file else { return Ok(Stdio::null()) };
    let opened = fs::File::open(path);
    let file = opened.map_err(|source| StartError::Input { path: path.clone(), source })?;
    Ok(Stdio::from(file))
}

/// Starts what was prepared; the other half is its input, if that is a pipe.
pub fn start(
    reaper: &Reaper,
    command: &mut Command,
    service: bool,
) -> Result<(CommandProcess, Option<ChildStdin>), StartError> {
    let (mut child, pid, exit) = reaper.start(command, service).map_err(|source| {
        let program = command.get_program().to_string_lossy().into_owned();
        StartError::Spawn { program, source }
    })?;
    let pipe = |fd: Option<OwnedFd>| fd.and_then(|fd| Receiver::from_owned_fd(fd).ok());
    let started = CommandProcess {
        pid,
        exit,
        stdout: pipe(child.stdout.take().map(OwnedFd::from)),
        stderr: pipe(child.stderr.take().map(OwnedFd::from)),
        clock: Stopwatch::start(),
        watch: None,
    };
    Ok((started, child.stdin.take()))
}

/// Follows a command to its end, which is the last frame.
pub async fn follow(
    reaper: &Reaper,
    request: &ExecRequest,
    started: Result<CommandProcess, StartError>,
    leaves: bool,
    outlet: &Arc<Outlet>,
) {
    let end = match started {
        Ok(started) => ended(reaper, request, started, leaves, outlet).await,
        Err(error) => unstarted(&error),
    };
    let json = serde_json::to_vec(&end).unwrap_or_default();
    // An error means that the host hung up.
    let _ = outlet.send(frame::encode(Kind::End, &json)).await;
}

async fn ended(
    reaper: &Reaper,
    request: &ExecRequest,
    started: CommandProcess,
    leaves: bool,
    outlet: &Arc<Outlet>,
) -> ExecEnd {
    let before = machine::counted();
    // Of what was tried before it only the number is told.
    drop(machine::tried());
    let layer = LayerWatch::default();
    let CommandProcess { pid, mut exit, stdout, stderr, clock, watch } = started;
    let limit = request.stream_limit_bytes;
    let late = watch::Sender::new(false);
    let stdout = pump(Kind::Stdout, stdout, limit, leaves, outlet, &late);
    let stderr = pump(Kind::Stderr, stderr, limit, leaves, outlet, &late);
    let mut timed_out = false;
    let first = tokio::select! {
        biased;
        reaped = &mut exit => reaped.ok(),
        () = outlet.awake_for(request.timeout_ms) => { timed_out = true; None }
        () = outlet.closed() => None,
        () = stopped(watch.as_ref()) => None,
        () = layer.during() => None,
    };
    let layer_full = layer.end();
    let wall_ms = clock.elapsed_ms();
    let failed = first.as_ref().is_none_or(|reaped| reaped.ended != CommandExit::Exit(0));
    let crowd = if failed { metrics::crowd() } else { 0 };
    let reaped = match first {
        Some(reaped) => reaped,
        None => {
            reaper.end(pid, leaves);
            match within_ms(DEATH_MS, exit).await {
                Some(Ok(reaped)) => reaped,
                _ => ChildExit { ended: CommandExit::Signal(9), cpu_ms: 0, max_rss_kb: 0 },
            }
        }
    };
    // Now that the first process is reaped no command may be running any more: catch what moved to
    // a group of its own.
    let drain_ms = match (leaves, &reaped.ended) {
        (false, _) => {
            reaper.sweep(pid);
            match limit {
                // The host's own reader may be slow: it has what is left of the wall time.
                ALL_BYTES => DRAIN_MS.max(request.timeout_ms.saturating_sub(wall_ms)),
                _ => DRAIN_MS,
            }
        }
        // Who is left may hold the pipes for ever.
        (true, CommandExit::Signal(_)) => KILLED_DRAIN_MS,
        (true, _) => LEFT_DRAIN_MS,
    };
    let both = async { (join(stdout).await, join(stderr).await) };
    tokio::pin!(both);
    let mut drained = within_ms(drain_ms, &mut both).await;
    if drained.is_none() && !leaves {
        // Every writer is dead: what was not taken is counted, and the end of the pipe is near.
        late.send_replace(true);
        drained = within_ms(LEFT_DRAIN_MS, both).await;
    }
    let (dropped_stdout, dropped_stderr) = drained.unwrap_or_default();
    ExecEnd {
        ended: reaped.ended,
        denied: false,
        wall_ms,
        cpu_ms: reaped.cpu_ms,
        max_rss_kb: reaped.max_rss_kb,
        timed_out,
        dropped_stdout,
        dropped_stderr,
        crowd,
        seen: watch.map(|watch| watch.seen()),
        counted: machine::counted().map(|now| LimitCounters {
            layer_full,
            no_routes: machine::no_routes(),
            ..since(now, before)
        }),
        no_routes: machine::tried(),
    }
}

/// Once a limit of its jail ends a command.
async fn stopped(watch: Option<&Watch>) {
    match watch {
        Some(watch) => watch.stopped().await,
        None => std::future::pending().await,
    }
}

fn since(now: LimitCounters, before: Option<LimitCounters>) -> LimitCounters {
    let Some(before) = before else { return now };
    LimitCounters {
        oom_kills: now.oom_kills.saturating_sub(before.oom_kills),
        pids_refused: now.pids_refused.saturating_sub(before.pids_refused),
        layer_full: now.layer_full,
        no_routes: now.no_routes,
    }
}

/// Reads a pipe to its end, sends what fits and counts the rest. With `leaves` it is read on for processes that hold
/// it beyond the command's end. Once it is late, nothing more is sent.
fn pump(
    kind: Kind,
    pipe: Option<Receiver>,
    limit: u64,
    leaves: bool,
    outlet: &Arc<Outlet>,
    late: &watch::Sender<bool>,
) -> JoinHandle<u64> {
    let (outlet, mut late) = (Arc::clone(outlet), late.subscribe());
    tokio::spawn(async move {
        let Some(mut pipe) = pipe else { return 0 };
        let mut buffer = vec![0; READ_BYTES];
        let (mut room, mut dropped) = (limit, 0);
        while let Ok(count) = pipe.read(&mut buffer).await {
            if count == 0 {
                break;
            }
            let kept = count.min(usize::try_from(room).unwrap_or(usize::MAX));
            room -= wide(kept);
            dropped += wide(count - kept);
            let piece = buffer.get(..kept).unwrap_or_default();
            if piece.is_empty() {
                continue;
            }
            tokio::select! {
                biased;
                sent = outlet.send(frame::encode(kind, piece)) => {
                    if sent.is_err() && !leaves {
                        break;
                    }
                    if sent.is_err() {
                        room = 0;
                    }
                }
                _ = late.wait_for(|late| *late) => {
                    room = 0;
                    dropped += wide(kept);
                }
            }
        }
        dropped
    })
}

async fn join(pump: JoinHandle<u64>) -> u64 {
    pump.await.unwrap_or(0)
}

fn wide(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}

/// The command as a library call, with nothing as its input.
pub fn prepare(request: &ExecRequest) -> Result<Command, StartError> {
    let name = request.argv.first().filter(|name| !name.is_empty()).ok_or(StartError::Empty)?;
    if !fs::metadata(&request.cwd).is_ok_and(|found| found.is_dir()) {
        return Err(StartError::Cwd(request.cwd.clone()));
    }
    let program = find(name, &request.env, Path::new(&request.cwd))?;
    let mut command = Command::new(program);
    command
        .arg0(name)
        .args(request.argv.iter().skip(1))
        .env_clear()
        .envs(&request.env)
        .current_dir(&request.cwd)
        .process_group(0)
        .stdin(input(request)?)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    drop_to(&mut command, request);
    Ok(command)
}

/// The command as a library call in a root of its own, where its program is looked for.
pub fn prepare_in(root: &str, request: &ExecRequest) -> Result<Command, StartError> {
    let name = request.argv.first().filter(|name| !name.is_empty()).ok_or(StartError::Empty)?;
    let mut command = Command::new(name);
    command
        .args(request.argv.iter().skip(1))
        .env_clear()
        .envs(&request.env)
        .process_group(0)
        .stdin(input(request)?)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let entered = identity::enter(&mut command, root, &request.cwd);
    entered.map_err(|_| StartError::Cwd(request.cwd.clone()))?;
    drop_to(&mut command, request);
    Ok(command)
}

/// Gives the command the rights of its user.
pub fn drop_to(command: &mut Command, request: &ExecRequest) {
    if let Some(user) = request.user {
        identity::take(command, user, &request.groups);
    }
}

/// Looked up here rather than by the library: an absolute program takes the fast `posix_spawn` path,
/// and "not found" stays apart from "not executable".
fn find(name: &str, env: &BTreeMap<String, String>, cwd: &Path) -> Result<PathBuf, StartError> {
    if name.contains('/') {
        let program = cwd.join(name);
        return match program.exists() {
            true => Ok(program),
            false => Err(StartError::NotFound(name.to_owned())),
        };
    }
    let path = env.get("PATH").map_or(DEFAULT_PATH, String::as_str);
    let programs = || path.split(':').map(|directory| cwd.join(directory).join(name));
    // As shells have it: one that nobody may execute is said to be that, and not to be absent.
    programs()
        .find(|program| is_executable(program))
        .or_else(|| programs().find(|program| program.is_file()))
        .ok_or_else(|| StartError::NotFound(name.to_owned()))
}

fn is_executable(program: &Path) -> bool {
    fs::metadata(program)
        .is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

fn unstarted(error: &StartError) -> ExecEnd {
    let reason = match std::error::Error::source(error) {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    };
    ExecEnd { denied: error.is_denied(), ..ExecEnd::of(CommandExit::Unstarted(reason)) }
}
