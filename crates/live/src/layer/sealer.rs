//! The process that seals the layer of a paused sandbox, and the worker's end of it.
//!
//! ```text
//! worker --one socket--> sealer: leaves the worker's mounts, waits for work
//!    \--job, layer, file--> (measures; "measured") seals; "sealed"; waits for the end
//!    \--hold--> what it has sealed does not count; "held": reads nothing    \--go on--> seals anew
//!    \--killed: the socket ends--> it seals, and exits; without work it exits
//! ```
//! **An order to hold counts from the moment at which it is given**: whatever was read after it is sealed anew, also by one whose
//! worker is killed. So the order need not be waited for.
//!
//! Snapshots and forks are sealed by one as well, while their sandbox stands still, at once, and only as long as its worker lives:
//! what a layer's entries take of memory is never the worker's, and has a bound of its own here.
//!
//! **It holds the layer before its pause is on record**, and from then on these files are lost only with it: a worker that is
//! killed leaves a process that seals them and ends. Descriptors wait in the socket, so they are its own from the moment at
//! which it is handed them.

mod job;
pub(crate) mod line;
mod message;
mod orders;
mod process;
pub(crate) mod spare;
mod start;

use std::io::{self, Read as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use cofferdam_ledger::snapshots::SealedFile;
use cofferdam_sandbox::outside_mounts;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

pub(crate) use job::SealInput;
pub(crate) use message::SealerMessage;
pub use process::seal_layer;
pub(crate) use start::SealStart;

use crate::background::blocking;

/// The hidden command that is the sealer.
pub const SEAL_COMMAND: &str = "seal-layer";
/// The program that runs.
const SELF: &str = "/proc/self/exe";
/// Between two looks whether the sandbox that stands still goes on.
const LOOK: Duration = Duration::from_millis(100);

/// A sealer that was started.
#[derive(Debug)]
pub(crate) struct Sealer {
    child: Child,
    /// Our end of its socket.
    pub orders: UnixStream,
}

impl Sealer {
    /// Starts one. Once this returns, it holds the layer.
    pub(crate) fn start(given: &SealInput, start: SealStart) -> io::Result<Self> {
        Self::waiting()?.with_work(given, start)
    }

    /// Gives the work to one that waits, or starts one where none does. Once this returns, it holds the layer.
    pub(crate) fn begin(
        waiting: Option<Self>,
        given: &SealInput,
        start: SealStart,
    ) -> io::Result<Self> {
        match waiting.map(|waiting| waiting.with_work(given, start)) {
            Some(Ok(sealer)) => Ok(sealer),
            _ => Self::start(given, start),
        }
    }

    /// Bytes of the stream, of one that measures. Blocking.
    pub(crate) fn measured(&self, goes_on: &dyn Fn() -> bool) -> io::Result<u64> {
        match self.says(goes_on)? {
            SealerMessage::Measured(bytes) => Ok(bytes),
            said => Err(said.fault()),
        }
    }

    /// The file, once it is written. Blocking; once `goes_on` says no, it is an error.
    pub(crate) fn sealed(&self, goes_on: &dyn Fn() -> bool) -> io::Result<SealedFile> {
        match self.says(goes_on)? {
            SealerMessage::Sealed(file) => Ok(file),
            said => Err(said.fault()),
        }
    }

    /// The next line that it says, and nothing behind it.
    fn says(&self, goes_on: &dyn Fn() -> bool) -> io::Result<SealerMessage> {
        let mut line = Vec::new();
        while line.last() != Some(&b'\n') {
            if !goes_on() {
                return Err(io::Error::other("the sandbox ends"));
            }
            let patience = Timespec::try_from(LOOK).ok();
            if poll(&mut [PollFd::new(&self.orders, PollFlags::IN)], patience.as_ref())? == 0 {
                continue;
            }
            let mut byte = [0];
            if (&self.orders).read(&mut byte)? == 0 {
                return Err(io::Error::other("what writes the sandbox's files has ended"));
            }
            line.extend(byte);
        }
        let said = String::from_utf8_lossy(&line);
        SealerMessage::parse(&said).ok_or_else(|| io::Error::other("a sealer sent an unknown line"))
    }

    /// Starts one without work.
    pub(crate) fn waiting() -> io::Result<Self> {
        let (ours, theirs) = UnixStream::pair()?;
        let outside: Vec<OwnedFd> = outside_mounts().into_iter().collect();
        let handed: Vec<BorrowedFd<'_>> = outside.iter().map(AsFd::as_fd).collect();
        orders::hand(&ours, orders::LEAVE, &handed)?;
        let child = Command::new(SELF)
            .arg(SEAL_COMMAND)
            .env_clear()
            .stdin(OwnedFd::from(theirs))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // A Ctrl-C at the worker's terminal is the worker's business alone.
            .process_group(0)
            .spawn()?;
        Ok(Self { child, orders: ours })
    }

    /// One that cannot be given it has ended.
    fn with_work(self, given: &SealInput, start: SealStart) -> io::Result<Self> {
        let handed = [&given.job, &given.layer, &given.file].map(|one| one.as_fd());
        match orders::hand(&self.orders, start.order(), &handed) {
            Ok(()) => Ok(self),
            Err(error) => {
                self.end();
                Err(error)
            }
        }
    }

    /// [`Sealer::end`], beside who waits for it.
    pub(crate) async fn ended(self) {
        let _ = blocking(move || {
            self.end();
            Ok(())
        })
        .await;
    }

    /// Ends it, and waits until it has ended: nothing of it holds the layer then. Blocking, for milliseconds.
    pub(crate) fn end(mut self) {
        drop(self.orders);
        // One that has ended is what was wanted.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
impl Sealer {
    /// A program that seals nothing.
    pub(crate) fn of_nothing() -> Self {
        let mut child = Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        Self { child, orders: UnixStream::pair().unwrap().0 }
    }
}
