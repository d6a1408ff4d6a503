//! Commands that can be talked to while they run.
//!
//! ```text
//! run -> CommandTable --- stdin, control, follow find it by its id --> it ends, or the host hangs up -> forgotten
//! ```

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::process::Stdio;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::{Bytes, BytesMut};
use cofferdam_guest::frame::{self, Kind};
use cofferdam_guest::process::{Control, RunRequest, StartFrame};
use cofferdam_guest::sleep::{Command, Follow, MAX_NOTE};
use cofferdam_guest::wire::CollectEnd;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper::{Response, StatusCode};
use rustix::process::{Pid, Signal};
use tokio::io::AsyncWriteExt as _;
use tokio::net::unix::pipe::{Receiver, Sender as Pipe};

use super::agent_sleep::SleepState;
use super::answer::{self, Answer, done, refuse};
use super::clock::{Stopwatch, within_ms};
use super::exec::{self, CommandProcess, StartError};
use super::outlet::Outlet;
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
    stdin: Option<Input>,
    terminal: Option<Arc<OwnedFd>>,
    /// Of one that may be followed again.
    followed: Option<FollowHandle>,
}

/// Where a command takes its input.
struct Input {
    pipe: Pipe,
    /// What came before the agent slept, and was not taken.
    left: BytesMut,
}

/// A command that the host may follow again, after its agent slept.
struct FollowHandle {
    outlet: Arc<Outlet>,
    note: String,
}

impl Input {
    fn of(pipe: Pipe) -> Self {
        Self { pipe, left: BytesMut::new() }
    }
}

/// The running commands.
#[derive(Default)]
pub struct CommandTable {
    entries: Mutex<HashMap<u64, RunningCommand>>,
    sleep_state: SleepState,
}

impl CommandTable {
    fn lock(&self) -> MutexGuard<'_, HashMap<u64, RunningCommand>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `POST /v1/run`. When it answers, the id is known.
    pub fn run(self: &Arc<Self>, reaper: &Arc<Reaper>, request: RunRequest) -> Response<Answer> {
        if request.note.len() > MAX_NOTE {
            return refuse(StatusCode::BAD_REQUEST, format!("a note has at most {MAX_NOTE} bytes"));
        }
        if self.lock().contains_key(&request.id) {
            return refuse(StatusCode::CONFLICT, StartError::Busy(request.id).to_string());
        }
        let (frames, response) = answer::frames();
        let outlet = Arc::new(Outlet::to(frames));
        let started = match begin(reaper, &request) {
            Ok((started, mut entry)) => {
                let (outlet, note) = (Arc::clone(&outlet), request.note.clone());
                entry.followed = request.leaves.then_some(FollowHandle { outlet, note });
                self.lock().insert(request.id, entry);
                Ok(started)
            }
            Err(error) => Err(error),
        };
        let (running, reaper) = (Arc::clone(self), Arc::clone(reaper));
        tokio::spawn(async move {
            if let Ok(started) = &started
                && request.leaves
            {
                // An error means that the host hung up, which following it sees.
                let _ = outlet.send(begun(started.pid)).await;
            }
            exec::follow(&reaper, &request.exec, started, request.leaves, &outlet).await;
            running.lock().remove(&request.id);
        });
        response
    }

    /// Answers `POST /v1/follow`: sends what a running command prints to this stream from now on.
    pub fn follow(&self, wanted: Follow) -> Response<Answer> {
        let entries = self.lock();
        let found = entries.get(&wanted.id);
        let Some((pid, followed)) =
            found.and_then(|entry| Some((entry.pid?, entry.followed.as_ref()?)))
        else {
            return refuse(StatusCode::NOT_FOUND, "no command of this id runs");
        };
        let (frames, response) = answer::frames();
        // It is the first in an empty queue.
        let _ = frames.try_send(begun(pid));
        followed.outlet.lead(frames);
        response
    }

    /// Answers `GET /v1/commands`: lists running commands that a host may follow again.
    pub fn commands(&self) -> Response<Answer> {
        let entries = self.lock();
        let told = entries.iter().filter_map(|(id, entry)| {
            let followed = entry.followed.as_ref()?;
            Some(Command {
                id: *id,
                pid: u32::try_from(entry.pid?.as_raw_pid()).ok()?,
                terminal: entry.terminal.is_some(),
                stdin: entry.stdin.is_some(),
                note: followed.note.clone(),
            })
        });
        let told: Vec<Command> = told.collect();
        let (frames, response) = answer::frames();
        tokio::spawn(async move {
            for command in &told {
                let json = serde_json::to_vec(command).unwrap_or_default();
                if frames.send(frame::encode(Kind::Item, &json)).await.is_err() {
                    return;
                }
            }
            let end = CollectEnd::of(0, None);
            let json = serde_json::to_vec(&end).unwrap_or_default();
            // An error means that the host hung up.
            let _ = frames.send(frame::encode(Kind::End, &json)).await;
        });
        response
    }

    /// Whether the agent sleeps: whoever serves connections waits for it.
    pub fn sleep_state(&self) -> &SleepState {
        &self.sleep_state
    }

    /// The host goes away, and comes back after the sandbox was stored.
    pub fn sleep(&self) {
        for followed in self.lock().values().filter_map(|entry| entry.followed.as_ref()) {
            followed.outlet.sleep();
        }
        self.sleep_state.fall();
    }

    /// The host is back. Commands go on, and are heard once it follows them.
    pub fn wake(&self) {
        self.sleep_state.end();
        for followed in self.lock().values().filter_map(|entry| entry.followed.as_ref()) {
            followed.outlet.wake();
        }
    }

    /// Answers `PUT /v1/stdin?id=`: gives the body to a command as its input, to the end.
    pub async fn stdin(&self, query: &str, mut body: Incoming) -> Response<Answer> {
        let id = query.strip_prefix("id=").and_then(|id| id.parse::<u64>().ok());
        let taken = id.and_then(|id| {
            let mut entries = self.lock();
            let entry = entries.get_mut(&id)?;
            Some((entry.stdin.take()?, entry.terminal.is_some()))
        });
        let Some((mut input, is_terminal)) = taken else {
            return refuse(StatusCode::NOT_FOUND, "no command of this id waits for input");
        };
        let given = tokio::select! {
            biased;
            given = give(&mut input, &mut body) => Some(given),
            () = self.sleep_state.fallen() => None,
        };
        match given {
            // What came is kept with the command, and whoever comes next gives it the rest.
            None => {
                keep(&mut input, &mut body).await;
                let mut entries = self.lock();
                if let Some(entry) = id.and_then(|id| entries.get_mut(&id)) {
                    entry.stdin = Some(input);
                }
                return done();
            }
            Some(InputEnd::All) => {}
            Some(InputEnd::BrokeOff) => {
                return refuse(StatusCode::BAD_REQUEST, "the input broke off");
            }
            Some(InputEnd::Gone) => return refuse(StatusCode::GONE, "the command reads no more"),
        }
        if is_terminal {
            // Closing our end would hang up on it instead.
            let _ = within_ms(LAST_WORD_MS, input.pipe.write_all(END_OF_INPUT)).await;
        }
        done()
    }

    /// Answers `POST /v1/control`: resizes a command's terminal, signals its group, or both.
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
        let Some(signal) = Signal::from_named_raw(number) else {
            return refuse(StatusCode::BAD_REQUEST, "a signal is 1 to 31");
        };
        match entry.pid.is_some_and(|pid| reaper.signal(pid, signal)) {
            true => done(),
            false => refuse(StatusCode::GONE, "the command has ended"),
        }
    }
}

/// How the giving of input ended.
enum InputEnd {
    All,
    BrokeOff,
    Gone,
}

/// Gives a command what was left and what comes. It may be dropped at any point: nothing is lost but what the body has.
async fn give(input: &mut Input, body: &mut Incoming) -> InputEnd {
    loop {
        while !input.left.is_empty() {
            match input.pipe.write_buf(&mut input.left).await {
                Ok(1..) => {}
                _ => return InputEnd::Gone,
            }
        }
        match body.frame().await {
            None => return InputEnd::All,
            Some(Err(_)) => return InputEnd::BrokeOff,
            Some(Ok(frame)) => {
                if let Ok(bytes) = frame.into_data() {
                    input.left.extend_from_slice(&bytes);
                }
            }
        }
    }
}

/// Keeps what of the input has arrived: no more than a stream's window.
async fn keep(input: &mut Input, body: &mut Incoming) {
    loop {
        let frame = tokio::select! {
            biased;
            frame = body.frame() => frame,
            () = std::future::ready(()) => None,
        };
        let Some(Ok(frame)) = frame else { return };
        if let Ok(bytes) = frame.into_data() {
            input.left.extend_from_slice(&bytes);
        }
    }
}

/// Tells its process id.
fn begun(pid: Pid) -> Bytes {
    let begun = StartFrame { pid: u32::try_from(pid.as_raw_pid()).unwrap_or(0) };
    frame::encode(Kind::Begun, &serde_json::to_vec(&begun).unwrap_or_default())
}

fn begin(
    reaper: &Reaper,
    request: &RunRequest,
) -> Result<(CommandProcess, RunningCommand), StartError> {
    let mut command = match &request.root {
        Some(root) => exec::prepare_in(root, &request.exec)?,
        None => exec::prepare(&request.exec)?,
    };
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
    let stdin = stdin.and_then(|pipe| Pipe::from_owned_fd(pipe.into()).ok()).map(Input::of);
    let entry = RunningCommand { pid: Some(started.pid), stdin, terminal: None, followed: None };
    Ok((started, entry))
}

/// A command in a jail is ended and never talked to.
fn jailed(
    reaper: &Reaper,
    request: &RunRequest,
    command: std::process::Command,
) -> Result<(CommandProcess, RunningCommand), StartError> {
    if request.stdin || request.terminal.is_some() || request.service || request.root.is_some() {
        let words =
            "it has neither input from the host nor a terminal or root, and is not a service";
        let unheld = io::Error::new(io::ErrorKind::InvalidInput, words);
        return Err(StartError::Jail(unheld));
    }
    let started = exec::begin(reaper, &request.exec, command)?;
    let entry =
        RunningCommand { pid: Some(started.pid), stdin: None, terminal: None, followed: None };
    Ok((started, entry))
}

fn with_terminal(
    reaper: &Reaper,
    request: &RunRequest,
    command: &std::process::Command,
    size: cofferdam_guest::process::Size,
) -> Result<(CommandProcess, RunningCommand), StartError> {
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
        stdin: request.stdin.then(|| Input::of(input)),
        terminal: Some(Arc::new(master)),
        followed: None,
    };
    Ok((started, entry))
}
