//! A value that is typed without being shown, or piped.

use std::io::{self, BufRead as _, IsTerminal as _, Read as _};

use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};

use super::exit::Misuse;
use super::output;

/// Bytes that are read: more than any header holds.
const MAX_BYTES: u64 = 64 * 1024;

/// Shows the terminal's text again, however the reading ends.
struct EchoGuard(Termios);

impl Drop for EchoGuard {
    fn drop(&mut self) {
        // A terminal that is gone shows nothing either way.
        let _ = tcsetattr(io::stdin(), OptionalActions::Now, &self.0);
        output::question_ends();
    }
}

/// One line of a terminal that shows nothing of it, or all of what is piped.
///
/// # Errors
/// Standard input cannot be read, is longer than any secret, or is not text.
pub(crate) fn read(question: &str) -> anyhow::Result<String> {
    let stdin = io::stdin();
    let mut bytes = Vec::new();
    if stdin.is_terminal() {
        output::question(question);
        let shown = tcgetattr(&stdin)?;
        let mut quiet = shown.clone();
        quiet.local_modes.remove(LocalModes::ECHO);
        let _shown_again = EchoGuard(shown);
        tcsetattr(&stdin, OptionalActions::Flush, &quiet)?;
        stdin.lock().take(MAX_BYTES).read_until(b'\n', &mut bytes)?;
    } else {
        stdin.lock().take(MAX_BYTES).read_to_end(&mut bytes)?;
    }
    String::from_utf8(bytes).map_err(|_| Misuse("the value is not text".to_owned()).into())
}
