//! A command, and who follows it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use cofferdam_live::inside::ExecEnd;
use cofferdam_live::{CommandEvent, Guest, Stream};
use serde_json::Value;
use tokio::sync::mpsc;

use crate::connect::fault::Fault;

/// Pieces of output that wait for one follower.
const QUEUED: usize = 16;
/// How long output waits for one follower before that one is given up: as long as a connection may stall.
const STALL: Duration = Duration::from_secs(60);

/// What a follower gets.
#[derive(Debug, Clone)]
pub(crate) enum Event {
    Data(&'static str, Bytes),
    End(Arc<ExecEnd>),
    /// The sandbox is over.
    Lost,
}

/// A command of a sandbox, running or ended, and those who follow it.
#[derive(Debug)]
pub(crate) struct Process {
    pub known: ProcessRecord,
    /// Where it is talked to.
    pub guest: Guest,
    /// Where its input goes; `None` once that is closed.
    stdin: Mutex<Option<mpsc::Sender<Bytes>>>,
    hub: Mutex<Hub>,
}

/// Facts of a command that do not change.
#[derive(Debug)]
pub(crate) struct ProcessRecord {
    pub pid: u32,
    /// Its number, for who holds its sandbox.
    pub number: u64,
    /// As lists show it.
    pub config: Value,
    pub tag: Option<String>,
    pub is_pty: bool,
}

#[derive(Debug, Default)]
struct Hub {
    followers: Vec<mpsc::Sender<Event>>,
    end: Option<Event>,
}

impl Process {
    pub(crate) fn of(
        guest: Guest,
        known: ProcessRecord,
        input: Option<mpsc::Sender<Bytes>>,
    ) -> Self {
        Self { known, guest, stdin: Mutex::new(input), hub: Mutex::default() }
    }

    /// Tells its followers what it says, to its end.
    pub(crate) async fn pump(&self, mut output: mpsc::Receiver<CommandEvent>) {
        loop {
            match output.recv().await {
                Some(CommandEvent::Output(stream, bytes)) => {
                    let name = match (self.known.is_pty, stream) {
                        (true, _) => "pty",
                        (false, Stream::Stdout) => "stdout",
                        (false, Stream::Stderr) => "stderr",
                    };
                    self.tell(&Event::Data(name, bytes)).await;
                }
                Some(CommandEvent::End(end)) => {
                    return self.over(Event::End(Arc::new(*end))).await;
                }
                None => return self.over(Event::Lost).await,
            }
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

    pub(crate) fn follow(&self) -> Follower {
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
        Follower { pid: self.known.pid, events }
    }

    pub(crate) fn is_over(&self) -> bool {
        self.hub().end.is_some()
    }

    fn hub(&self) -> MutexGuard<'_, Hub> {
        self.hub.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn input(&self) -> Result<mpsc::Sender<Bytes>, Fault> {
        let stdin = self.stdin.lock().unwrap_or_else(PoisonError::into_inner);
        let closed = || {
            Fault::new(
                "failed_precondition",
                "the input of the process is closed, or it was started without",
            )
        };
        stdin.clone().ok_or_else(closed)
    }

    pub(crate) fn close_input(&self) {
        self.stdin.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}

/// One follower of a command.
#[derive(Debug)]
pub(crate) struct Follower {
    pub pid: u32,
    pub events: mpsc::Receiver<Event>,
}
