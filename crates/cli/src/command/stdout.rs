//! Standard output: what could not be written is known at the end, and a reader that went ends what waits for it.
//!
//! ```text
//! write -> fails -> remembered -> every further write is left out -> verdict: 141 in silence, or an error
//! reader_gone: looks at the pipe itself, so that a command with nothing to print ends too
//! ```
//! No signal ends this process for it: it may hold a database and sandboxes, which are taken down in order.

use std::io::{self, Write};
use std::sync::OnceLock;
use std::time::Duration;

use cofferdam_ambient::clock;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::exit::Exit;

/// How often a command that streams looks whether somebody reads.
const LOOK: Duration = Duration::from_millis(200);

/// The first failure.
static LOST: OnceLock<StdoutError> = OnceLock::new();

#[derive(Debug)]
struct StdoutError {
    kind: io::ErrorKind,
    why: String,
}

/// Writes all of it, or remembers why not.
pub(crate) fn write(bytes: &[u8]) {
    if LOST.get().is_some() {
        return;
    }
    let mut out = io::stdout().lock();
    if let Err(error) = out.write_all(bytes).and_then(|()| out.flush()) {
        lose(&error);
    }
}

/// Remembers a failure of somebody else's write.
pub(crate) fn lose(error: &io::Error) {
    let _ = LOST.set(StdoutError { kind: error.kind(), why: error.to_string() });
}

/// How the process ends instead, where its output did not arrive.
///
/// # Errors
/// A disk that is full, and whatever else is not the reader's own wish.
pub(crate) fn verdict() -> anyhow::Result<Option<Exit>> {
    match LOST.get() {
        None => Ok(None),
        Some(lost) if lost.kind == io::ErrorKind::BrokenPipe => Ok(Some(Exit::Unread)),
        Some(lost) => anyhow::bail!("cannot write to standard output: {}", lost.why),
    }
}

/// Until nobody can read any more what this process prints.
pub(crate) async fn reader_gone() {
    while !is_unread() {
        clock::sleep(LOOK).await;
    }
    // Also where nothing was printed since: what it waited for was the output alone.
    lose(&io::ErrorKind::BrokenPipe.into());
}

/// Whether nobody can read what this process prints.
pub(crate) fn is_unread() -> bool {
    if LOST.get().is_some() {
        return true;
    }
    let out = io::stdout();
    let mut looked = [PollFd::new(&out, PollFlags::empty())];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    // A pipe without a reader is in error; a terminal or a socket without its other end hung up.
    poll(&mut looked, Some(&at_once)).is_ok()
        && looked.iter().any(|fd| fd.revents().intersects(PollFlags::ERR | PollFlags::HUP))
}
