//! An agent that sleeps while its sandbox is stored: see [`cofferdam_guest::sleep`].

use std::io;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use cofferdam_guest::frame::Kind;
use cofferdam_guest::process::StartFrame;
use cofferdam_guest::sleep::{self, Command, Follow};
use hyper::Method;
use tokio::io::AsyncWriteExt as _;
use tokio::net::UnixStream;

use super::persistent_stream::Sleep;
use super::{Agent, AgentError, CommandHandle, Frames, Result, encode, parse};

/// From the agent's answer to its sleep: its own bound is 0.15 s.
const FALL_ASLEEP: Duration = Duration::from_secs(5);
/// All commands of a sandbox: milliseconds.
const TOLD_WITHIN: Duration = Duration::from_secs(15);
/// Commands of one sandbox that are listed: five times as many as it serves at once. Each has a note of some KiB.
const MAX_COMMANDS: usize = 256;
/// Commands that are told of, whoever tells.
const MAX_TOLD: usize = 65_536;
const LEVEL: u32 = 9;

impl Agent {
    /// Ends the connection to the agent, which waits on its stream until it is woken. What it cannot do is refused, and
    /// then it goes on.
    pub(crate) async fn sleep(&self) -> Result<()> {
        self.needs(LEVEL)?;
        let mut sleeps = self.sleep.subscribe();
        self.sleep.send_replace(Sleep::Called);
        // The agent may be its task's, which answers what it likes or nothing.
        let told = self.send(Method::POST, sleep::SLEEP, Bytes::new());
        let told = tokio::time::timeout(FALL_ASLEEP, told).await;
        if let Err(error) = told.unwrap_or(Err(AgentError::Lost)) {
            self.sleep.send_replace(Sleep::Awake);
            return Err(error);
        }
        let asleep = sleeps.wait_for(|sleep| *sleep == Sleep::Asleep);
        match tokio::time::timeout(FALL_ASLEEP, asleep).await {
            Ok(Ok(_)) => Ok(()),
            _ => Err(AgentError::Lost),
        }
    }

    /// Wakes the agent at the other end of a stream that nobody has used yet.
    pub(crate) async fn wake(stream: &mut UnixStream) -> io::Result<()> {
        stream.write_all(sleep::WAKE).await
    }

    /// The commands that run and may be followed again. New ones get other ids than these.
    pub async fn commands(&self) -> Result<Vec<Command>> {
        let told = tokio::time::timeout(TOLD_WITHIN, self.commands_told()).await;
        told.unwrap_or(Err(AgentError::Lost))
    }

    async fn commands_told(&self) -> Result<Vec<Command>> {
        self.needs(LEVEL)?;
        let response = self.send(Method::GET, sleep::COMMANDS, Bytes::new()).await?;
        let mut frames = Frames::of(response);
        let mut commands: Vec<Command> = Vec::new();
        for _ in 0..MAX_TOLD {
            match frames.next().await? {
                (Kind::Item, payload) => {
                    let command: Command = parse(&payload)?;
                    self.last_id.fetch_max(command.id.saturating_add(1), Ordering::Relaxed);
                    if commands.len() < MAX_COMMANDS {
                        commands.push(command);
                    }
                }
                (Kind::End, _) => return Ok(commands),
                _ => return Err(AgentError::Forged("something else in a list of commands")),
            }
        }
        Err(AgentError::Forged("more commands than any sandbox has"))
    }

    /// Follows a command that was started before the agent slept. Dropping what is given kills the command.
    pub async fn follow(&self, command: &Command) -> Result<CommandHandle> {
        self.needs(LEVEL)?;
        let body = encode(&Follow { id: command.id })?;
        let response = self.send(Method::POST, sleep::FOLLOW, body).await?;
        let mut frames = Frames::of(response);
        let (mut pid, mut first) = (None, None);
        match frames.next().await? {
            (Kind::Begun, payload) => pid = Some(parse::<StartFrame>(&payload)?.pid),
            other => first = Some(other),
        }
        let agent = self.clone();
        Ok(CommandHandle { agent, id: command.id, frames, limit: u64::MAX, pid, first })
    }
}
