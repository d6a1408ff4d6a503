//! The files of a machine, from its agent: see [`cofferdam_guest::keep`].

use std::io::{self, Read};
use std::time::Duration;

use bytes::{Buf as _, Bytes};
use cofferdam_guest::frame::Kind;
use cofferdam_guest::keep::KEEP;
use cofferdam_guest::wire::CollectEnd;
use hyper::Method;
use tokio::runtime::Handle;
use tokio::sync::mpsc;

use super::body::Outgoing;
use super::{Agent, AgentError, Frames, Result, parse};

const LEVEL: u32 = 10;
/// Between two pieces: an emulated machine on a busy host has stopped its processes within a second.
const SILENCE: Duration = Duration::from_secs(30);

/// A machine's task stands still. It goes on when this is dropped.
#[derive(Debug)]
pub(crate) struct StandingTask {
    _body: mpsc::Sender<Bytes>,
    /// The answer, whose end is there with that of the body.
    _frames: Frames,
}

/// The stream of its files, whatever the agent makes of it. For a thread that may wait. Dropped, its sandbox goes on.
pub(crate) struct KeptFiles {
    frames: Frames,
    piece: Bytes,
    is_over: bool,
    runtime: Handle,
    body: mpsc::Sender<Bytes>,
}

impl Agent {
    /// Has the task of a machine stand still, and its files handed out.
    pub(crate) async fn keep(&self) -> Result<KeptFiles> {
        self.needs(LEVEL)?;
        let (body, pieces) = mpsc::channel(1);
        let asked = self.request(Method::POST, KEEP, Outgoing::Stream(pieces));
        let asked = tokio::time::timeout(SILENCE, asked).await;
        let response = asked.unwrap_or(Err(AgentError::Lost))?;
        let (frames, runtime) = (Frames::of(response), Handle::current());
        Ok(KeptFiles { frames, piece: Bytes::new(), is_over: false, runtime, body })
    }
}

impl KeptFiles {
    /// Makes sure that the agent says the same of the end as the stream does. The sandbox goes on standing still.
    pub(crate) fn end(mut self) -> io::Result<StandingTask> {
        match self.read(&mut [0])? {
            0 => Ok(StandingTask { _body: self.body, _frames: self.frames }),
            _ => Err(io::Error::other("the agent says more than the files")),
        }
    }

    async fn next(&mut self) -> Result<()> {
        match self.frames.next().await? {
            // An empty one would count for nothing, and they could go on for ever.
            (Kind::Chunk, piece) if !piece.is_empty() => self.piece = piece,
            (Kind::End, end) => match parse::<CollectEnd>(&end)?.error {
                Some(error) => return Err(AgentError::Collect(error)),
                None => self.is_over = true,
            },
            _ => return Err(AgentError::Forged("something else in the files of a machine")),
        }
        Ok(())
    }
}

impl Read for KeptFiles {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.piece.is_empty() && !self.is_over {
            let runtime = self.runtime.clone();
            let next = runtime.block_on(tokio::time::timeout(SILENCE, self.next()));
            next.unwrap_or(Err(AgentError::Lost)).map_err(io::Error::other)?;
        }
        let count = buffer.len().min(self.piece.len());
        self.piece.copy_to_slice(buffer.get_mut(..count).unwrap_or_default());
        Ok(count)
    }
}
