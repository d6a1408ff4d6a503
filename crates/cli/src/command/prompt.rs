//! A question on the terminal that can be taken back.
//!
//! ```text
//! ask -> answer() -- a line --> Answer::Line
//!          |  ^----- end of input --> Answer::End
//!          `-- dropped (the gate was answered elsewhere, Ctrl-C) -> withdraw: what was typed so far is nobody's answer
//! ```
//! The terminal stays in its own mode, and is read only when it says that a line is there: nothing of this
//! process waits inside `read`, so there is nothing to leave and nothing to restore.

use std::io::{self, IsTerminal};
use std::time::Duration;

use cofferdam_ambient::clock;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::termios::{QueueSelector, tcflush};

use super::output;

/// A person does not notice that the answer waited so long.
const LOOK: Duration = Duration::from_millis(30);
/// Bytes of an answer; a terminal's own line has at most as many.
const MAX_LINE: usize = 4_096;

/// What came of a question.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Line(String),
    /// Nobody will answer here any more.
    End,
}

/// Whether somebody can be asked.
pub(crate) fn can_ask() -> bool {
    io::stdin().is_terminal()
}

/// Shows the question; the answer comes by [`answer`].
pub(crate) fn ask(question: &str) {
    output::question(question);
}

/// The line that is typed. Dropped, it has taken nothing that was not a whole line.
pub(crate) async fn answer() -> Answer {
    let mut line = Vec::new();
    loop {
        while !is_ready() {
            clock::sleep(LOOK).await;
        }
        // On a thread of its own: should another process take the line in between, only that thread waits.
        let read = tokio::task::spawn_blocking(read).await;
        match read {
            Ok(Ok(bytes)) if !bytes.is_empty() => line.extend(bytes),
            _ => return Answer::End,
        }
        if line.contains(&b'\n') || line.len() > MAX_LINE {
            return Answer::Line(String::from_utf8_lossy(&line).trim().to_owned());
        }
    }
}

/// Ends a question that is nobody's any more: its line, and whatever was typed on it.
pub(crate) fn withdraw() {
    output::question_ends();
    let _ = tcflush(io::stdin(), QueueSelector::IFlush);
}

fn is_ready() -> bool {
    let stdin = io::stdin();
    let mut looked = [PollFd::new(&stdin, PollFlags::IN)];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    // Whatever is wrong with it is read as its end.
    poll(&mut looked, Some(&at_once)).map_or(true, |ready| ready > 0)
}

/// One read of what is there; past the buffer of the standard library, which would hide lines from [`is_ready`].
fn read() -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; MAX_LINE];
    let taken = rustix::io::read(io::stdin(), &mut bytes)?;
    bytes.truncate(taken);
    Ok(bytes)
}
