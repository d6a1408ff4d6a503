//! Commands that can be talked to while they run.
//!
//! ```text
//! run -> Running --- stdin, control find it by its id --> it ends, or the host hangs up -> forgotten
//! ```

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::process::Stdio;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use cofferdam_guest::frame::{self, Kind};
use cofferdam_guest::process::{Begun, Control, RunRequest};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper::{Response, StatusCode};
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use tokio::io::AsyncWriteExt as _;
use tokio::net::unix::pipe::{Receiver, Sender as Pipe};
use tokio::sync::mpsc::Sender;

use super::answer::{self, Answer, done, refuse};
use super::clock::{Stopwatch, within_ms};
use super::exec::{self, StartError, Started};
use super::reaper::Reaper;
use super::terminal;

/// End of transmission: what a person types to end the input of a terminal.
const END_OF_INPUT: &[u8] = &[4];
/// How long a terminal's reader has to take what was typed before the end of input.
const LAST_WORD_MS: u64 = 5_000;

/// What is known of a running command.
struct RunningCommand {
    pid: Option<Pid>,
    /// Until somebody takes it.
    stdin: Option<Pipe>,
    terminal: Option<Arc<OwnedFd>>,
}

/// The running commands.
#[derive(Default)]
pub struct Running {
    entries: Mutex<HashMap<u64, RunningCommand>>,
}

impl Running {
    fn lock(&self) -> MutexGuard<'_, HashMap<u64, RunningCommand>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `POST /v1/run`. When it answers, the id is known.
    pub fn run(self: &Arc<Self>, reaper: &Arc<Reaper>, request: RunRequest) -> Response<Answer> {
        if self.lock().contains_key(&request.id) {
            return refuse(StatusCode::CONFLICT, StartError::Busy(request.id).to_string());
        }
        let started = match begin(reaper, &request) {
            Ok((started, entry)) => {
                self.lock().insert(request.id, entry);
                Ok(started)
            }
            Err(error) => Err(error),
        };
        let (frames, response) = answer::frames();
        let (running, reaper) = (Arc::clone(self), Arc::clone(reaper));
        tokio::spawn(async move {
            if let Ok(started) = &started
                && request.leaves
            {
                begun(started, &frames).await;
            }
            exec::follow(&reaper, &request.exec, started, request.leaves, &frames).await;
            running.lock().remove(&request.id);
        });
        response
    }

    /// `PUT /v1/stdin?id=`.
    pub async fn stdin(&self, query: &str, mut body: Incoming) -> Response<Answer> {
        let id = query.strip_prefix("id=").and_then(|id| id.parse::<u64>().ok());
        let taken = id.and_then(|id| {
            let mut entries = self.lock();
            let entry = entries.get_mut(&id)?;
            Some((entry.stdin.take()?, entry.terminal.is_some()))
        });
        let Some((mut pipe, is_terminal)) = taken else {
            return refuse(StatusCode::NOT_FOUND, "no command of this id waits for input");
        };
        while let Some(frame) = body.frame().await {
            let Ok(frame) = frame else {
                return refuse(StatusCode::BAD_REQUEST, "the input broke off");
            };
            let Ok(bytes) = frame.into_data() else { continue };
            if pipe.write_all(&bytes).await.is_err() {
                return refuse(StatusCode::GONE, "the command reads no more");
            }
        }
        if is_terminal {
            // Closing our end would hang up on it instead.
            let _ = within_ms(LAST_WORD_MS, pipe.write_all(END_OF_INPUT)).await;
        }
        done()
    }

    /// `POST /v1/control`.
    pub fn control(&self, reaper: &Reaper, control: &Control) -> Response<Answer> {
        let entries = self.lock();
        let Some(entry) = entries.get(&control.id) else {
            return refuse(StatusCode::NOT_FOUND, "no command of this id runs");
        };
        if let Some(size) = control.size {
            let resized =
                entry.terminal.as_ref().map(|terminal| terminal::resize(terminal, size).is_ok());
            if resized != Some(true) {
                return refuse(StatusCode::CONFLICT, "the command has no terminal");
            }
        }
        let Some(number) = control.signal else { return done() };
        let Ok(signal) = Signal::try_from(number) else {
            return refuse(StatusCode::BAD_REQUEST, "a signal is 1 to 31");
        };
        match entry.pid.is_some_and(|pid| reaper.signal(pid, signal)) {
            true => done(),
            false => refuse(StatusCode::GONE, "the command has ended"),
        }
    }
}

/// Tells its process id.
async fn begun(started: &Started, frames: &Sender<Bytes>) {
    let begun = Begun { pid: u32::try_from(started.pid.as_raw()).unwrap_or(0) };
    let json = serde_json::to_vec(&begun).unwrap_or_default();
    // An error means that the host hung up, which following it sees.
    let _ = frames.send(frame::encode(Kind::Begun, &json)).await;
}

fn begin(reaper: &Reaper, request: &RunRequest) -> Result<(Started, RunningCommand), StartError> {
    let mut command = exec::prepare(&request.exec)?;
    if request.exec.jail.is_some() {
        return jailed(reaper, request, command);
    }
    if let Some(size) = request.terminal {
        return with_terminal(reaper, request, &command, size);
    }
    if request.stdin {
        command.stdin(Stdio::piped());
    }
    let (started, stdin) = exec::start(reaper, &mut command, request.service)?;
    let stdin = stdin.and_then(|pipe| Pipe::from_owned_fd(pipe.into()).ok());
    let entry = RunningCommand { pid: Some(started.pid), stdin, terminal: None };
    Ok((started, entry))
}

/// A command in a jail is ended and never talked to.
fn jailed(
    reaper: &Reaper,
    request: &RunRequest,
    command: std::process::Command,
) -> Result<(Started, RunningCommand), StartError> {
    if request.stdin || request.terminal.is_some() || request.service {
        let words = "it has neither input from the host nor a terminal, and is not a service";
        let unheld = io::Error::new(io::ErrorKind::InvalidInput, words);
        return Err(StartError::Jail(unheld));
    }
    let started = exec::begin(reaper, &request.exec, command)?;
    let entry = RunningCommand { pid: Some(started.pid), stdin: None, terminal: None };
    Ok((started, entry))
}

fn with_terminal(
    reaper: &Reaper,
    request: &RunRequest,
    command: &std::process::Command,
    size: cofferdam_guest::process::Size,
) -> Result<(Started, RunningCommand), StartError> {
    let (mut session, master) = terminal::attach(command, size).map_err(StartError::Terminal)?;
    exec::drop_to(&mut session, &request.exec);
    let clock = Stopwatch::start();
    let (mut started, _) = exec::start(reaper, &mut session, request.service)?;
    let halves = || -> io::Result<(Receiver, Pipe)> {
        let (read, write) = (master.try_clone()?, master.try_clone()?);
        Ok((Receiver::from_owned_fd_unchecked(read)?, Pipe::from_owned_fd_unchecked(write)?))
    };
    let (output, input) = match halves() {
        Ok(halves) => halves,
        Err(error) => {
            reaper.sweep(started.pid);
            return Err(StartError::Terminal(error));
        }
    };
    started.stdout = Some(output);
    started.clock = clock;
    let entry = RunningCommand {
        pid: Some(started.pid),
        stdin: request.stdin.then_some(input),
        terminal: Some(Arc::new(master)),
    };
    Ok((started, entry))
}
