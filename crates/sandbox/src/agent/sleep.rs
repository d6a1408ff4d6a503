//! An agent that sleeps while its sandbox is stored: see [`cofferdam_guest::sleep`].

use std::io;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use cofferdam_guest::frame::Kind;
use cofferdam_guest::process::Begun;
use cofferdam_guest::sleep::{self, Command, Follow, Listening};
use hyper::Method;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio::net::UnixStream;

use super::{Agent, AgentError, Frames, Result, Running, encode, parse};

/// From the agent's answer to its sleep: its own bound is 0.15 s.
const FALL_ASLEEP: Duration = Duration::from_secs(5);
/// Commands of one sandbox that are listed: five times as many as it serves at once. Each has a note of some KiB.
const MAX_COMMANDS: usize = 256;
/// Commands that are told of, whoever tells.
const MAX_TOLD: usize = 65_536;
const LEVEL: u32 = 9;
/// An agent that sleeps answers within some milliseconds.
const ASK_AGAIN: Duration = Duration::from_millis(20);
/// What may come of an ended connection before the agent sleeps: what its streams may have had on their way.
const MAX_LAST_BYTES: usize = 1024 * 1024;

/// Where an agent is with its sleep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sleep {
    Awake,
    /// It was asked to, and its connection ends.
    Called,
    Asleep,
}

impl Agent {
    /// Ends the connection to the agent, which waits on its stream until it is woken. What it cannot do is refused, and
    /// then it goes on.
    pub(crate) async fn sleep(&self) -> Result<()> {
        self.needs(LEVEL)?;
        let mut sleeps = self.sleep.subscribe();
        self.sleep.send_replace(Sleep::Called);
        if let Err(error) = self.send(Method::POST, sleep::SLEEP, Bytes::new()).await {
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
    pub async fn follow(&self, command: &Command) -> Result<Running> {
        self.needs(LEVEL)?;
        let body = encode(&Follow { id: command.id })?;
        let response = self.send(Method::POST, sleep::FOLLOW, body).await?;
        let mut frames = Frames::of(response);
        let (mut pid, mut first) = (None, None);
        match frames.next().await? {
            (Kind::Begun, payload) => pid = Some(parse::<Begun>(&payload)?.pid),
            other => first = Some(other),
        }
        let agent = self.clone();
        Ok(Running { agent, id: command.id, frames, limit: u64::MAX, pid, first })
    }
}

/// Asks until the agent says that it sleeps, and gives the stream. Its owner has a bound of time.
pub(super) async fn asleep(stream: std::os::unix::net::UnixStream) -> io::Result<UnixStream> {
    let (mut stream, mut listening) = (UnixStream::from_std(stream)?, Listening::to(sleep::ASLEEP));
    // Where the agent waits for the end of the connection, it has it.
    stream.write_all(sleep::CUT).await?;
    let mut left = MAX_LAST_BYTES;
    loop {
        stream.write_all(sleep::ASK).await?;
        let said = async {
            while left > 0 {
                left -= 1;
                if listening.hears(stream.read_u8().await?) {
                    return Ok(());
                }
            }
            Err(io::ErrorKind::InvalidData.into())
        };
        match tokio::time::timeout(ASK_AGAIN, said).await {
            Ok(said) => return said.map(|()| stream),
            // What was asked was read by the connection that ended.
            Err(_) => {}
        }
    }
}

/// A stream that outlives the connection on it: its end is not said when the connection ends.
pub(super) struct Kept(pub UnixStream);

impl AsyncRead for Kept {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Kept {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write_vectored(cx, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_flush(cx)
    }
}
