//! Commands of a sandbox: started, followed, talked to.

use std::sync::Arc;

use bytes::Bytes;
use cofferdam_sandbox::inside::{Command, ExecRequest, Size};
use cofferdam_sandbox::{CommandEvent, CommandHandle, ExecOptions};
use serde::{Deserialize, Serialize};
use tokio::sync::{OwnedSemaphorePermit, mpsc};

use crate::guest::STREAM_PATIENCE;
use crate::guest::error::GuestError;
use crate::guest::message::GuestMessage;
use crate::handle::LiveHandle;

/// Pieces of input on their way to one command; who writes waits beyond.
const QUEUED_INPUT: usize = 4;
/// Pieces of output on their way to who follows a command; the command waits beyond.
const QUEUED_OUTPUT: usize = 4;

/// Starts a command; its end tells whether it could be.
#[derive(Debug, Serialize, Deserialize)]
pub struct StartCommand {
    /// What is run.
    pub request: ExecRequest,
    /// Its input, its terminal, and what outlives it.
    pub options: ExecOptions,
    /// Kept beside the command while it runs, for whoever follows it after a pause.
    pub note: String,
}

/// Follows a command that a pause did not end.
#[derive(Debug, Serialize, Deserialize)]
pub struct FollowCommand(pub Command);

/// The commands that run.
#[derive(Debug, Serialize, Deserialize)]
pub struct ListCommands;

/// Sends a signal to a command's process group.
#[derive(Debug, Serialize, Deserialize)]
pub struct SignalCommand {
    /// The command's [`Process::number`].
    pub number: u64,
    /// The signal's number.
    pub signal: i32,
}

/// Gives a command's terminal a new size.
#[derive(Debug, Serialize, Deserialize)]
pub struct ResizeTerminal {
    /// The command's [`Process::number`].
    pub number: u64,
    /// New height and width in characters.
    pub size: Size,
}

/// A command that runs. Dropping what gives its output kills it.
#[derive(Debug)]
pub struct Process {
    /// Its number, for other messages about it.
    pub number: u64,
    /// Its process id as its sandbox sees it; `None`: it did not start, and its end says why.
    pub pid: Option<u32>,
    /// Where its input goes; dropping it closes that.
    pub input: Option<mpsc::Sender<Bytes>>,
    /// What it says. Without an end, it was lost with its sandbox.
    pub output: mpsc::Receiver<CommandEvent>,
}

impl Process {
    fn of(running: CommandHandle, has_input: bool, mut share: OwnedSemaphorePermit) -> Self {
        let (number, pid, remote) = (running.number(), running.pid(), running.remote());
        let input = has_input.then(|| {
            let (sender, pieces) = mpsc::channel(QUEUED_INPUT);
            let own = share.split(1);
            tokio::spawn(async move {
                // An error means that the command reads no more.
                let _ = remote.stdin(pieces).await;
                drop(own);
            });
            sender
        });
        let (said, output) = mpsc::channel(QUEUED_OUTPUT);
        tokio::spawn(async move {
            pump(running, said).await;
            drop(share);
        });
        Self { number, pid, input, output }
    }
}

/// Passes on what a command says, to its end or until nobody listens, which ends it.
async fn pump(mut running: CommandHandle, listener: mpsc::Sender<CommandEvent>) {
    loop {
        let said = tokio::select! {
            said = running.next() => said,
            () = listener.closed() => return,
        };
        let said = match said {
            Ok(said) => said,
            Err(error) => {
                tracing::debug!(%error, pid = running.pid(), "a command was lost with its sandbox");
                return;
            }
        };
        let is_end = matches!(said, CommandEvent::End(_));
        if listener.send(said).await.is_err() || is_end {
            return;
        }
    }
}

async fn share(held: &LiveHandle, has_input: bool) -> Result<OwnedSemaphorePermit, GuestError> {
    held.streams(1 + u32::from(has_input), STREAM_PATIENCE).await.ok_or(GuestError::Busy)
}

impl GuestMessage for StartCommand {
    type Reply = Process;

    async fn answer(self, held: &Arc<LiveHandle>) -> Result<Process, GuestError> {
        let Self { request, options, note } = self;
        let share = share(held, options.stdin).await?;
        let running = held.agent.start_noted(request, options, note).await?;
        Ok(Process::of(running, options.stdin, share))
    }
}

impl GuestMessage for FollowCommand {
    type Reply = Process;

    async fn answer(self, held: &Arc<LiveHandle>) -> Result<Process, GuestError> {
        let share = share(held, self.0.stdin).await?;
        let running = held.agent.follow(&self.0).await?;
        Ok(Process::of(running, self.0.stdin, share))
    }
}

impl GuestMessage for ListCommands {
    type Reply = Vec<Command>;

    async fn answer(self, held: &Arc<LiveHandle>) -> Result<Vec<Command>, GuestError> {
        Ok(held.agent.commands().await?)
    }
}

impl GuestMessage for SignalCommand {
    type Reply = ();

    async fn answer(self, held: &Arc<LiveHandle>) -> Result<(), GuestError> {
        Ok(held.agent.remote(self.number).signal(self.signal).await?)
    }
}

impl GuestMessage for ResizeTerminal {
    type Reply = ();

    async fn answer(self, held: &Arc<LiveHandle>) -> Result<(), GuestError> {
        Ok(held.agent.remote(self.number).resize(self.size).await?)
    }
}
