//! What the init of a machine is told, and the files that it asks for.
//!
//! ```text
//! pieces of a snapshot --blocking pool--> queue --> the stream --> the init, which unpacks them
//!                                     what it says meanwhile ends this: it is a fault <--'
//! ```

use std::io::{self, Read};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use cofferdam_ambient::{clock, random};
use cofferdam_guest::setup::{CLOCK, CLOCK_ASKS, FILES, READY, RestoreSetup, Setup};
use cofferdam_guest::sleep::{AWAKE, WAKE, WordMatcher};
use serde::Serialize;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::sync::mpsc;

/// A line of the init's: what failed, or that nothing did.
const MAX_LINE: usize = 4_096;
/// What an agent that fell asleep may have said after it was heard: words of its sleep.
const MAX_LAST_WORDS: usize = 64 * 1024;
/// One read of the files, and how many of them wait for the machine.
const PIECE_BYTES: usize = 128 * 1024;
const QUEUED: usize = 4;

/// Why a machine did not become what it was told to be.
pub(crate) enum SetupError {
    /// The init says what failed.
    Said(String),
    /// The files that it begins with are not what they were, or were given to a machine that was lost.
    Files(io::Error),
    /// It is gone, or speaks otherwise.
    Lost,
}

impl From<io::Error> for SetupError {
    fn from(_: io::Error) -> Self {
        Self::Lost
    }
}

/// The files that a machine begins with. They are read once, by the first machine that asks for them.
#[derive(Clone)]
pub(crate) struct MachineFiles(Arc<Mutex<Option<Box<dyn Read + Send>>>>);

impl std::fmt::Debug for MachineFiles {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("MachineFiles")
    }
}

impl MachineFiles {
    pub fn new(files: Box<dyn Read + Send>) -> Self {
        Self(Arc::new(Mutex::new(Some(files))))
    }

    fn take(&self) -> Result<Box<dyn Read + Send>, SetupError> {
        let taken = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        let lost = || io::Error::other("the machine that was given them was lost");
        taken.ok_or_else(|| SetupError::Files(lost()))
    }

    /// Gives all of them, and what the init says then.
    async fn give(&self, stream: &mut UnixStream) -> Result<String, SetupError> {
        let mut files = self.take()?;
        let (pieces, mut queue) = mpsc::channel::<io::Result<Bytes>>(QUEUED);
        let reading = tokio::task::spawn_blocking(move || {
            loop {
                let mut piece = vec![0; PIECE_BYTES];
                let read = files.read(&mut piece).map(|count| {
                    piece.truncate(count);
                    Bytes::from(piece)
                });
                let is_last = read.as_ref().map_or(true, Bytes::is_empty);
                // Nobody takes it where the machine is lost.
                if pieces.blocking_send(read).is_err() || is_last {
                    return;
                }
            }
        });
        let (mut from, mut to) = stream.split();
        let giving = async {
            while let Some(piece) = queue.recv().await {
                to.write_all(&piece.map_err(SetupError::Files)?).await?;
            }
            Ok::<_, SetupError>(())
        };
        let saying = line(&mut from);
        tokio::pin!(giving, saying);
        let said = tokio::select! {
            biased;
            given = &mut giving => {
                given?;
                saying.await
            }
            // It has read to their end, or it does not go on.
            said = &mut saying => said,
        };
        drop(reading);
        Ok(said?)
    }
}

/// Has a machine become what it is told, until it says this word.
pub(super) async fn set_up(
    stream: &mut UnixStream,
    mut setup: Setup,
    files: Option<&MachineFiles>,
    wanted: &str,
) -> Result<(), SetupError> {
    setup.seed = random::secret_bytes();
    setup.is_filled = files.is_some();
    answered(stream, &setup, files, wanted).await
}

/// Wakes a machine that was stored with its sandbox, and tells its init what is new. Its task goes on with the agent.
pub(super) async fn wake(stream: &mut UnixStream) -> Result<(), SetupError> {
    stream.write_all(WAKE).await?;
    let mut listening = WordMatcher::to(AWAKE);
    let mut left = MAX_LAST_WORDS;
    while !listening.hears(stream.read_u8().await?) {
        left = left.checked_sub(1).ok_or(SetupError::Lost)?;
    }
    answered(stream, &RestoreSetup { seed: random::secret_bytes() }, None, READY).await
}

/// Says a line and answers what is asked, until this word.
async fn answered(
    stream: &mut UnixStream,
    line_of: &impl Serialize,
    files: Option<&MachineFiles>,
    wanted: &str,
) -> Result<(), SetupError> {
    let mut said = serde_json::to_vec(line_of).map_err(io::Error::other)?;
    said.push(b'\n');
    stream.write_all(&said).await?;
    let mut answer = line(stream).await?;
    for _ in 0..=CLOCK_ASKS {
        answer = match answer.as_str() {
            CLOCK => {
                stream.write_all(format!("{}\n", clock::now_ms()).as_bytes()).await?;
                line(stream).await?
            }
            FILES if let Some(files) = files => files.give(stream).await?,
            word if word == wanted => return Ok(()),
            fault => return Err(SetupError::Said(fault.trim().to_owned())),
        };
    }
    match answer == wanted {
        true => Ok(()),
        false => {
            Err(SetupError::Said("the machine's init asks for nothing but the time".to_owned()))
        }
    }
}

/// A line with its end. The other side says nothing behind it that is not asked for.
pub(super) async fn line(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<String> {
    let mut said = Vec::new();
    while said.last() != Some(&b'\n') && said.len() < MAX_LINE {
        said.push(stream.read_u8().await?);
    }
    Ok(String::from_utf8_lossy(&said).into_owned())
}
