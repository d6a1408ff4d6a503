//! This process's own terminal, while something inside a sandbox has it: every key is passed on, and its size is told.
//!
//! **The terminal is given back as it was, however this ends.**

use std::io::{self, Read};

use anyhow::Context;
use cofferdam_contracts::input::TerminalSize;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use tokio::sync::mpsc;

/// Bytes of one read of the keyboard: a pasted page.
pub(crate) const READ_BYTES: usize = 16 * 1024;
/// Reads that wait for the server.
const QUEUED: usize = 16;

/// A terminal that passes every key on. Dropping it makes it again what it was.
pub(crate) struct RawTerminal(Termios);

impl RawTerminal {
    pub(crate) fn take() -> anyhow::Result<Self> {
        let before = tcgetattr(io::stdin()).context("the terminal")?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(io::stdin(), OptionalActions::Drain, &raw).context("the terminal")?;
        Ok(Self(before))
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        // A terminal that hung up has no state to be given back.
        let _ = tcsetattr(io::stdin(), OptionalActions::Drain, &self.0);
    }
}

/// The size of the terminal that standard input is, or of the one that standard output is.
pub(crate) fn size() -> TerminalSize {
    let found = tcgetwinsize(io::stdin()).or_else(|_| tcgetwinsize(io::stdout())).ok();
    let usual = TerminalSize::default();
    // A terminal without a size says 0.
    let or = |said: u16, usual: u16| if said == 0 { usual } else { said };
    found.map_or(usual, |found| TerminalSize {
        rows: or(found.ws_row, usual.rows),
        cols: or(found.ws_col, usual.cols),
    })
}

/// What is typed, or comes by a pipe or file. On a thread of its own, which ends with the process: nothing waits for a key.
pub(crate) fn keyboard() -> mpsc::Receiver<Vec<u8>> {
    let (sender, receiver) = mpsc::channel(QUEUED);
    std::thread::spawn(move || {
        let mut buffer = vec![0; READ_BYTES];
        loop {
            match io::stdin().lock().read(&mut buffer) {
                Ok(count) if count > 0 => {
                    let typed = buffer.get(..count).unwrap_or_default().to_vec();
                    if sender.blocking_send(typed).is_err() {
                        return;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                _ => return,
            }
        }
    });
    receiver
}
