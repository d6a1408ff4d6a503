//! The files of a machine, from its agent: see [`cofferdam_guest::layer_stream`].

use std::io::{self, Read};
use std::time::Duration;

use bytes::{Buf as _, Bytes};
use cofferdam_ambient::clock::Stopwatch;
use cofferdam_guest::frame::Kind;
use cofferdam_guest::layer_stream::KEEP;
use cofferdam_guest::wire::CollectEnd;
use hyper::Method;
use tokio::runtime::Handle;
use tokio::sync::mpsc;

use super::body::RequestBody;
use super::{Agent, AgentError, Frames, Result, parse};

const LEVEL: u32 = 10;
/// Between two pieces: an emulated machine on a busy host has stopped its processes within a second.
const SILENCE: Duration = Duration::from_secs(30);
/// For all of them, as long as it takes to put the largest layer into a machine: one that says a byte now and then is not
/// believed for ever.
const ALL: Duration = Duration::from_secs(300);
/// Between two looks at whether the files are wanted still.
const LOOK: Duration = Duration::from_millis(250);

/// Whether somebody waits for the files still.
pub(crate) type CancelCheck<'a> = &'a dyn Fn() -> bool;

/// A machine's task stands still. It goes on when this is dropped.
#[derive(Debug)]
pub(crate) struct FrozenTask {
    _body: mpsc::Sender<Bytes>,
    /// The answer, whose end is there with that of the body.
    _frames: Frames,
}

/// The stream of its files, whatever the agent makes of it. For a thread that may wait. Dropped, its sandbox goes on.
pub(crate) struct LayerStream<'a> {
    frames: Frames,
    piece: Bytes,
    is_over: bool,
    runtime: Handle,
    body: mpsc::Sender<Bytes>,
    since: Stopwatch,
    wanted: CancelCheck<'a>,
}

impl Agent {
    /// Has the task of a machine stand still, and its files handed out for as long as they are wanted. For a thread that may wait.
    pub(crate) fn open_layer_stream<'a>(&self, wanted: CancelCheck<'a>) -> Result<LayerStream<'a>> {
        self.needs(LEVEL)?;
        let (body, pieces) = mpsc::channel(1);
        let asked = self.request(Method::POST, KEEP, RequestBody::Stream(pieces));
        let (runtime, since) = (Handle::current(), Stopwatch::start());
        let response = runtime.block_on(in_time(asked, &since, wanted))?;
        let frames = Frames::of(response);
        Ok(LayerStream {
            frames,
            piece: Bytes::new(),
            is_over: false,
            runtime,
            body,
            since,
            wanted,
        })
    }
}

/// What an agent answers while it is wanted, and neither this nor all of it takes too long.
async fn in_time<T>(
    answer: impl Future<Output = Result<T>>,
    all: &Stopwatch,
    wanted: CancelCheck<'_>,
) -> Result<T> {
    let mut answer = std::pin::pin!(answer);
    let own = Stopwatch::start();
    while wanted() && own.elapsed() < SILENCE && all.elapsed() < ALL {
        if let Ok(answer) = tokio::time::timeout(LOOK, &mut answer).await {
            return answer;
        }
    }
    Err(AgentError::Lost)
}

impl LayerStream<'_> {
    /// Makes sure that the agent says the same of the end as the stream does. The sandbox goes on standing still.
    pub(crate) fn end(mut self) -> io::Result<FrozenTask> {
        match self.read(&mut [0])? {
            0 => Ok(FrozenTask { _body: self.body, _frames: self.frames }),
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

impl Read for LayerStream<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.piece.is_empty() && !self.is_over {
            let runtime = self.runtime.clone();
            let (since, wanted) = (self.since, self.wanted);
            let next = runtime.block_on(in_time(self.next(), &since, wanted));
            next.map_err(io::Error::other)?;
        }
        let count = buffer.len().min(self.piece.len());
        self.piece.copy_to_slice(buffer.get_mut(..count).unwrap_or_default());
        Ok(count)
    }
}
