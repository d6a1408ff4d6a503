//! `process.Process`: the commands of a sandbox, and who follows them.
//!
//! ```text
//! Start --> a command, its pump, a first follower      Connect --> one more follower
//! pump: output --> every follower (a slow one slows the command; without one it is dropped)
//!       end --> every follower, and kept for 30 s for a late Connect
//! ```
//!
//! One file: a command and who follows it hold one state.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderMap, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use cofferdam_ambient::clock;
use cofferdam_live::inside::{Ended, ExecEnd, Size};
use cofferdam_live::{Guest, ResizeTerminal, Said, SignalCommand, Stream};
use hyper::body::Incoming;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::connect::{self, Codec, ContentType, Fault, Form, Messages, Replied};
use super::room::Room;
use super::shape::ping;
use super::start;

/// The end of a command is kept so long for a follower that comes late.
const KEPT: Duration = Duration::from_secs(30);
/// Pieces of output that wait for one follower.
const QUEUED: usize = 16;
/// Bytes of one piece of input: a few wait for a command which does not read, and beyond them its sender.
const INPUT_BYTES: usize = 64 * 1024;
/// Commands in one list, those that ended included. The latter make room for others before their time.
const MAX_LISTED: usize = 256;
/// How long output waits for one follower before that one is given up: as long as a connection may stall.
const STALL: Duration = Duration::from_secs(60);
const SIGKILL: i32 = 9;
const SIGTERM: i32 = 15;

/// What a follower gets.
#[derive(Debug, Clone)]
enum Event {
    Data(&'static str, Bytes),
    End(Arc<ExecEnd>),
    /// The sandbox is over.
    Lost,
}

/// A command.
#[derive(Debug)]
pub(crate) struct Process {
    pub pid: u32,
    pub config: Value,
    pub tag: Option<String>,
    is_pty: bool,
    /// Where it is talked to, and under which number.
    guest: Guest,
    number: u64,
    /// Where its input goes; `None` once that is closed.
    stdin: Mutex<Option<mpsc::Sender<Bytes>>>,
    hub: Mutex<Hub>,
}

/// A command that was started, or that a pause did not end.
pub(crate) struct NewProcess {
    pub pid: u32,
    pub running: cofferdam_live::Process,
    pub config: Value,
    pub tag: Option<String>,
    pub is_pty: bool,
}

#[derive(Debug, Default)]
struct Hub {
    followers: Vec<mpsc::Sender<Event>>,
    end: Option<Event>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Selector {
    pid: Option<u32>,
    tag: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PtySize {
    #[serde(default)]
    cols: u32,
    #[serde(default)]
    rows: u32,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Pty {
    size: Option<PtySize>,
}

impl Pty {
    /// The terminal's size; 80 by 24 where it says none.
    pub(crate) fn size(&self) -> Size {
        let cell = |wanted: u32, usual: u16| match u16::try_from(wanted) {
            Ok(0) | Err(_) => usual,
            Ok(wanted) => wanted,
        };
        let size = self.size.as_ref();
        Size {
            rows: cell(size.map_or(0, |size| size.rows), 24),
            cols: cell(size.map_or(0, |size| size.cols), 80),
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Selected {
    process: Selector,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Update {
    process: Selector,
    pty: Option<Pty>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Signal {
    process: Selector,
    signal: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Input {
    stdin: Option<String>,
    pty: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct SendInput {
    process: Selector,
    input: Input,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct StreamInput {
    start: Option<Selected>,
    data: Option<Data>,
    #[serde(rename = "keepalive")]
    _keepalive: Option<Value>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Data {
    input: Input,
}

impl Process {
    /// Enters a started command in the room's list and pumps what it says.
    pub(crate) fn enter(room: &Arc<Room>, new: NewProcess) -> (Arc<Self>, Following) {
        let NewProcess { pid, running, config, tag, is_pty } = new;
        let cofferdam_live::Process { number, input, output, .. } = running;
        let (guest, stdin, hub) = (room.guest.clone(), Mutex::new(input), Mutex::default());
        let process = Arc::new(Self { pid, config, tag, is_pty, guest, number, stdin, hub });
        listed_in(&mut room.processes(), pid, Arc::clone(&process));
        // Before the first piece: nothing that it says is missed.
        let events = process.follow();
        tokio::spawn(Arc::clone(&process).pump(Arc::clone(room), output));
        (process, events)
    }

    async fn pump(self: Arc<Self>, room: Arc<Room>, mut output: mpsc::Receiver<Said>) {
        loop {
            match output.recv().await {
                Some(Said::Output(stream, bytes)) => {
                    let name = match (self.is_pty, stream) {
                        (true, _) => "pty",
                        (false, Stream::Stdout) => "stdout",
                        (false, Stream::Stderr) => "stderr",
                    };
                    self.tell(&Event::Data(name, bytes)).await;
                }
                Some(Said::End(end)) => {
                    self.over(Event::End(Arc::new(*end))).await;
                    break;
                }
                None => {
                    self.over(Event::Lost).await;
                    break;
                }
            }
        }
        drop(output);
        clock::sleep(KEPT).await;
        let mut processes = room.processes();
        // Its number may be another's by now.
        if processes.get(&self.pid).is_some_and(|found| Arc::ptr_eq(found, &self)) {
            processes.remove(&self.pid);
        }
    }

    async fn tell(&self, event: &Event) {
        let followers = self.hub().followers.clone();
        for follower in followers {
            let told = tokio::time::timeout(STALL, follower.send(event.clone())).await;
            if !matches!(told, Ok(Ok(()))) {
                self.hub().followers.retain(|other| !other.same_channel(&follower));
            }
        }
    }

    async fn over(&self, event: Event) {
        self.close_input();
        let followers = {
            let mut hub = self.hub();
            hub.end = Some(event.clone());
            std::mem::take(&mut hub.followers)
        };
        for follower in followers {
            let _ = tokio::time::timeout(STALL, follower.send(event.clone())).await;
        }
    }

    fn follow(&self) -> Following {
        let (sender, events) = mpsc::channel(QUEUED);
        let mut hub = self.hub();
        match &hub.end {
            Some(end) => drop(sender.try_send(end.clone())),
            None => {
                // Those who hung up would else stay until the next piece, which may never come.
                hub.followers.retain(|follower| !follower.is_closed());
                hub.followers.push(sender);
            }
        }
        Following { pid: self.pid, events }
    }

    fn is_over(&self) -> bool {
        self.hub().end.is_some()
    }

    fn hub(&self) -> MutexGuard<'_, Hub> {
        self.hub.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn input(&self) -> Result<mpsc::Sender<Bytes>, Fault> {
        let stdin = self.stdin.lock().unwrap_or_else(PoisonError::into_inner);
        let closed = || {
            Fault::new(
                "failed_precondition",
                "the input of the process is closed, or it was started without",
            )
        };
        stdin.clone().ok_or_else(closed)
    }

    fn close_input(&self) {
        self.stdin.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}

/// Enters a command, in the place of one that ended where there are many.
fn listed_in(processes: &mut HashMap<u32, Arc<Process>>, pid: u32, process: Arc<Process>) {
    if processes.len() >= MAX_LISTED {
        let ended = processes.iter().find(|(_, process)| process.is_over()).map(|(pid, _)| *pid);
        ended.and_then(|pid| processes.remove(&pid));
    }
    processes.insert(pid, process);
}

/// One follower of a command.
#[derive(Debug)]
pub(crate) struct Following {
    pid: u32,
    events: mpsc::Receiver<Event>,
}

impl Following {
    /// As a streamed answer: the pid first.
    fn told(self, headers: &HeaderMap, codec: Codec) -> Response<Body> {
        let Self { pid, mut events } = self;
        let (replies, response) = connect::stream(codec);
        let silence = ping(headers.get("keepalive-ping-interval"));
        tokio::spawn(async move {
            let mut next = json!({"event": {"start": {"pid": pid}}});
            while replies.send(&next).await {
                next = tokio::select! {
                    event = events.recv() => match event {
                        Some(Event::Data(name, bytes)) => {
                            json!({"event": {"data": {name: STANDARD.encode(&bytes)}}})
                        }
                        Some(Event::End(end)) => {
                            replies.send(&json!({"event": {"end": ended(&end)}})).await;
                            let late = Fault::new("deadline_exceeded", "the command ran longer than the timeout of the request");
                            return replies.end(end.timed_out.then_some(&late)).await;
                        }
                        Some(Event::Lost) | None => {
                            // Clients call this a sandbox's time-out, and their tests read these words.
                            let why = "the sandbox was killed or reached its end of life while the command ran";
                            return replies.end(Some(&Fault::new("unavailable", why))).await;
                        }
                    },
                    () = clock::sleep(silence) => json!({"event": {"keepalive": {}}}),
                    () = replies.closed() => return,
                };
            }
        });
        response
    }
}

/// The message of an end. Pure.
fn ended(end: &ExecEnd) -> Value {
    match &end.ended {
        Ended::Exit(code) => {
            let mut value =
                json!({"exitCode": code, "exited": true, "status": format!("exit status {code}")});
            if let Some(fields) = value.as_object_mut().filter(|_| *code != 0) {
                fields.insert("error".into(), format!("exit status {code}").into());
            }
            value
        }
        Ended::Signal(signal) => {
            let status = format!("signal: {}", signal_name(*signal));
            json!({"exitCode": -1, "exited": false, "status": status, "error": status})
        }
        Ended::Unstarted(why) => {
            json!({"exitCode": -1, "exited": false, "status": why, "error": why})
        }
    }
}

/// A signal as Go names it.
fn signal_name(signal: i32) -> String {
    const NAMES: [(i32, &str); 8] = [
        (1, "hangup"),
        (2, "interrupt"),
        (3, "quit"),
        (6, "aborted"),
        (9, "killed"),
        (11, "segmentation fault"),
        (13, "broken pipe"),
        (15, "terminated"),
    ];
    let found = NAMES.into_iter().find(|(number, _)| *number == signal);
    found.map_or_else(|| format!("signal {signal}"), |(_, name)| name.to_owned())
}

/// Answers one call of the service.
pub(crate) async fn answer(
    room: &Arc<Room>,
    method: &str,
    ContentType { form, codec }: ContentType,
    headers: &HeaderMap,
    body: Incoming,
) -> Response<Body> {
    room.adopt().await;
    match (form, method) {
        (Form::Stream, "StreamInput") => streamed(room, body, codec).await,
        (Form::Stream, "Start" | "Connect") => {
            let message = Messages::first(body, codec).await;
            let following = match (message, method) {
                (Ok(message), "Start") => match room.acting(headers) {
                    Ok(account) => start::start(room, account, message, headers).await,
                    Err(fault) => Err(fault),
                },
                (Ok(message), _) => connect::parse::<Selected>(message)
                    .and_then(|wanted| any(room, &wanted.process))
                    .map(|process| process.follow()),
                (Err(fault), _) => Err(fault),
            };
            match following {
                Ok(following) => following.told(headers, codec),
                Err(fault) => connect::failed(&fault, codec),
            }
        }
        (Form::Unary, _) => {
            let replied = match connect::message(body, codec).await {
                Ok(message) => unary(room, method, message).await,
                Err(fault) => Err(fault),
            };
            connect::unary(replied, codec)
        }
        (Form::Stream, _) => connect::failed(&unknown(method), codec),
    }
}

fn unknown(method: &str) -> Fault {
    let method: String = method.chars().take(64).collect();
    Fault::new("unimplemented", format!("process.Process has no method {method} of this form"))
}

async fn unary(room: &Arc<Room>, method: &str, message: Value) -> Replied {
    match method {
        "List" => {
            let processes: Vec<Value> =
                room.processes().values().filter(|p| !p.is_over()).map(listed).collect();
            Ok(json!({"processes": processes}))
        }
        "Update" => {
            let Update { process, pty } = connect::parse(message)?;
            let process = running(room, &process)?;
            let Some(pty) = pty else { return Ok(json!({})) };
            let size = ResizeTerminal { number: process.number, size: pty.size() };
            let resized = process.guest.ask(size).await;
            let no_pty = |_| Fault::new("failed_precondition", "the process has no terminal");
            resized.map(|()| json!({})).map_err(no_pty)
        }
        "SendInput" => {
            let SendInput { process, input } = connect::parse(message)?;
            let process = running(room, &process)?;
            put(&process, &input).await.map(|()| json!({}))
        }
        "CloseStdin" => {
            let Selected { process } = connect::parse(message)?;
            running(room, &process)?.close_input();
            Ok(json!({}))
        }
        "SendSignal" => {
            let Signal { process, signal } = connect::parse(message)?;
            let signal = match signal.as_str() {
                "SIGNAL_SIGKILL" => SIGKILL,
                "SIGNAL_SIGTERM" => SIGTERM,
                other => {
                    return Err(Fault::argument(format!(
                        "signal {other:?} is neither SIGKILL nor SIGTERM"
                    )));
                }
            };
            let process = running(room, &process)?;
            let sent = process.guest.ask(SignalCommand { number: process.number, signal }).await;
            sent.map(|()| json!({})).map_err(|_| Fault::missing("the process has ended"))
        }
        other => Err(unknown(other)),
    }
}

fn listed(process: &Arc<Process>) -> Value {
    let mut value = json!({"pid": process.pid, "config": process.config});
    if let (Some(tag), Some(fields)) = (&process.tag, value.as_object_mut()) {
        fields.insert("tag".into(), tag.clone().into());
    }
    value
}

/// A process, one that ended a moment ago included.
fn any(room: &Room, wanted: &Selector) -> Result<Arc<Process>, Fault> {
    let processes = room.processes();
    let found = match (wanted.pid, &wanted.tag) {
        (Some(pid), None) => processes.get(&pid),
        (None, Some(tag)) => {
            let tagged = processes.values().filter(|process| process.tag.as_ref() == Some(tag));
            // Of several, one that runs.
            tagged.min_by_key(|process| process.is_over())
        }
        _ => return Err(Fault::argument("a process is selected by its pid or by its tag")),
    };
    found.cloned().ok_or_else(|| match wanted.pid {
        Some(pid) => Fault::missing(format!("process with pid {pid} not found")),
        None => Fault::missing("process with this tag not found"),
    })
}

fn running(room: &Room, wanted: &Selector) -> Result<Arc<Process>, Fault> {
    let found = any(room, wanted)?;
    match found.is_over() {
        true => Err(Fault::missing(format!("process with pid {} not found", found.pid))),
        false => Ok(found),
    }
}

async fn put(process: &Process, input: &Input) -> Result<(), Fault> {
    let text = match (&input.stdin, &input.pty) {
        (Some(text), None) | (None, Some(text)) => text,
        _ => return Err(Fault::argument("input is stdin or pty")),
    };
    if input.pty.is_some() != process.is_pty {
        return Err(Fault::argument(
            "pty input is for processes with a terminal, stdin for the others",
        ));
    }
    let bytes = STANDARD.decode(text).map_err(|_| Fault::argument("input is not base64"))?;
    let (input, mut bytes) = (process.input()?, Bytes::from(bytes));
    while !bytes.is_empty() {
        let piece = bytes.split_to(INPUT_BYTES.min(bytes.len()));
        let sent = input.send(piece).await;
        sent.map_err(|_| Fault::new("failed_precondition", "the process reads no more"))?;
    }
    Ok(())
}

/// `StreamInput`: the process first, then pieces.
async fn streamed(room: &Arc<Room>, body: Incoming, codec: Codec) -> Response<Body> {
    let mut messages = Messages::of(body, codec);
    let mut process: Option<Arc<Process>> = None;
    let taken = async {
        while let Some(message) = messages.next().await? {
            let StreamInput { start, data, _keepalive } = connect::parse(message)?;
            if let Some(start) = start {
                process = Some(running(room, &start.process)?);
            }
            if let Some(data) = data {
                let process = process.as_ref();
                let process = process
                    .ok_or_else(|| Fault::argument("the first message names the process"))?;
                put(process, &data.input).await?;
            }
        }
        Ok::<_, Fault>(())
    };
    match taken.await {
        Ok(()) => {
            let (replies, response) = connect::stream(codec);
            tokio::spawn(async move {
                replies.send(&json!({})).await;
                replies.end(None).await;
            });
            response
        }
        Err(fault) => connect::failed(&fault, codec),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(ended: Ended) -> ExecEnd {
        ExecEnd {
            ended,
            denied: false,
            wall_ms: 0,
            cpu_ms: 0,
            max_rss_kb: 0,
            timed_out: false,
            dropped_stdout: 0,
            dropped_stderr: 0,
            crowd: 0,
            seen: None,
            counted: None,
            no_routes: Vec::new(),
        }
    }

    #[test]
    fn an_end_is_told_as_clients_read_it() {
        let good = ended(&end(Ended::Exit(0)));
        assert_eq!(good, json!({"exitCode": 0, "exited": true, "status": "exit status 0"}));
        assert_eq!(ended(&end(Ended::Exit(3)))["error"], "exit status 3");
        let killed = ended(&end(Ended::Signal(9)));
        assert_eq!(killed["error"], "signal: killed");
        assert_eq!(
            (killed["exitCode"].as_i64(), killed["exited"].as_bool()),
            (Some(-1), Some(false))
        );
    }

    #[test]
    fn a_terminal_has_a_size() {
        let size = |value: Value| serde_json::from_value::<Pty>(value).unwrap().size();
        assert_eq!(size(json!({"size": {"cols": 100, "rows": 30}})), Size { rows: 30, cols: 100 });
        assert_eq!(size(json!({})), Size { rows: 24, cols: 80 });
        assert_eq!(size(json!({"size": {"cols": 70_000}})), Size { rows: 24, cols: 80 });
    }
}
