//! A program of this host that holds a sandbox: a runtime or an emulator, with one end of a socket pair as its
//! standard input.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::net::UnixStream;
use tokio::process::{Child, Command};
use tokio::task::JoinHandle;

use super::isolation::{
    Launch, LaunchInput, LaunchResult, ReadyStart, RuntimeFuture, RuntimeHandle, StartError,
};
use super::tail::{LOG_BYTES, keep_last};
use crate::host::process;
use crate::host::starter;
use crate::host::task::blocking;
use crate::machine::monitor::DiskServer;
use crate::machine::{self, EmulatorOrders, InheritedFd};

/// A first process that was killed has this long to end: what is left then stands in the evidence.
const END_MS: u32 = 5_000;

/// A program that runs.
#[derive(Debug)]
pub(crate) struct HostProgram(Child);

impl RuntimeHandle for HostProgram {
    fn wait(&mut self) -> RuntimeFuture<'_, Option<String>> {
        Box::pin(async move { self.0.wait().await.ok().map(|status| status.to_string()) })
    }

    fn kill(&mut self) -> RuntimeFuture<'_, bool> {
        Box::pin(async move { self.0.kill().await.is_ok() })
    }

    fn is_program(&self) -> bool {
        true
    }
}

/// The first process of a sandbox whose runtime is gone.
#[derive(Debug)]
pub(crate) struct FirstProcess(pub Arc<OwnedFd>);

impl RuntimeHandle for FirstProcess {
    /// It waits only so long as one that was killed may take.
    fn wait(&mut self) -> RuntimeFuture<'_, Option<String>> {
        let init = Arc::clone(&self.0);
        Box::pin(async move {
            let ended = move || process::has_ended_within(&init, END_MS);
            blocking(ended).await.then(|| "its first process ended".to_owned())
        })
    }

    fn kill(&mut self) -> RuntimeFuture<'_, bool> {
        process::kill(&self.0);
        Box::pin(async move { self.wait().await.is_some() })
    }
}

/// A program that is about to be started.
struct RuntimeCommand {
    command: Command,
    path: PathBuf,
    ours: UnixStream,
    is_killed_with_us: bool,
    /// The state that a stored machine is restored from. Dropped when the process is there, which has its own.
    lent: Option<InheritedFd>,
    orders: Option<EmulatorOrders>,
}

impl RuntimeCommand {
    fn start(self) -> Result<LaunchResult, StartError> {
        let path = self.path;
        let mut command = self.command;
        let spawned = match self.is_killed_with_us {
            true => starter::start(move || command.spawn()),
            false => command.spawn(),
        };
        let child = spawned.map_err(|source| StartError::Spawn { path, source })?;
        let (holder, log) = held(child, None);
        let (is_restored, orders) = (self.lent.is_some(), self.orders);
        Ok(LaunchResult {
            is_restored,
            orders,
            ..LaunchResult::of(Box::new(holder), log, self.ours)
        })
    }
}

/// Starts the program of a class, or the emulator of a machine with its disk. Within a runtime.
pub(crate) fn start(class: &dyn Launch, on: LaunchInput<'_>) -> Result<LaunchResult, StartError> {
    ready(class, on)?.start()
}

/// Has the program of a class ready, to be started later.
pub(crate) fn later(class: &dyn Launch, on: LaunchInput<'_>) -> Result<ReadyStart, StartError> {
    let ready = ready(class, on)?;
    Ok(Box::new(move || ready.start()))
}

fn ready(class: &dyn Launch, on: LaunchInput<'_>) -> Result<RuntimeCommand, StartError> {
    let path = on.plan.runtime.path.clone();
    let fault = |source| StartError::Spawn { path: path.clone(), source };
    let (ours, theirs) = std::os::unix::net::UnixStream::pair().map_err(fault)?;
    ours.set_nonblocking(true).map_err(fault)?;
    let ours = UnixStream::from_std(ours).map_err(fault)?;
    // crun uses the first both ways; runc copies from the first and to the second.
    let stdin = OwnedFd::from(theirs.try_clone().map_err(fault)?);
    let stdout = match &on.disk {
        // An emulator uses the first both ways too, and has its disk behind the other.
        Some(disk) => machine::serve(disk).map_err(fault)?,
        None => OwnedFd::from(theirs),
    };
    let command = class.command(&on);
    let mut command = command.ok_or(StartError::Unfillable(on.plan.class.as_str()))?;
    command
        .env_clear()
        .stdin(stdin)
        .stdout(stdout)
        .stderr(Stdio::piped())
        // A Ctrl-C at the worker's terminal is the worker's business alone.
        .process_group(0)
        .kill_on_drop(true);
    let is_killed_with_us = class.is_killed_with_us();
    let orders = class.orders(&mut command).map_err(fault)?;
    Ok(RuntimeCommand { command, path, ours, is_killed_with_us, lent: on.lent, orders })
}

/// Holds a program that was started; the disk of a machine is served until nobody has its log open.
pub(crate) fn held(
    mut child: Child,
    serving: Option<DiskServer>,
) -> (HostProgram, JoinHandle<String>) {
    let log = child.stderr.take();
    let log = tokio::spawn(async move {
        let _serving = serving;
        match log {
            Some(pipe) => tail(pipe).await,
            None => String::new(),
        }
    });
    (HostProgram(child), log)
}

/// The last bytes of a stream, read to its end so that its writer never blocks.
async fn tail(mut pipe: impl AsyncRead + Unpin) -> String {
    let mut kept = Vec::new();
    let mut buffer = [0; 4096];
    while let Ok(count) = pipe.read(&mut buffer).await {
        if count == 0 {
            break;
        }
        keep_last(&mut kept, buffer.get(..count).unwrap_or_default(), LOG_BYTES);
    }
    String::from_utf8_lossy(&kept).into_owned()
}
