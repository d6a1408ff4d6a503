//! What `exec` is given on its standard input: the command's own input.
//!
//! ```text
//! -t                           -> a terminal, key by key
//! -i                           -> streamed as it comes
//! a pipe or file, small text   -> a file of the plan: on record, there for every attempt, on every server
//! a pipe or file, all others   -> streamed; what was read of it goes first
//! ```

use std::io::{self, IsTerminal, Read};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::FileType;

use super::exit::Misuse;
use super::output;

/// Bytes of text that become a part of the plan, which is kept with the run for good. More is streamed.
pub(crate) const MAX_STDIN_BYTES: usize = 128 * 1024;
/// After so long without a byte, a person is told what is waited for.
const QUIET_S: i64 = 3;

/// How it is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StdinChoice {
    /// Not at all.
    Nothing,
    /// As fits what standard input is.
    Usual,
    /// As it comes, whatever it is.
    Stream,
    /// As it is typed, with a terminal inside.
    Terminal,
}

/// The command's input.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Stdin {
    /// A terminal, `/dev/null`, a closed stream, or it is not wanted.
    Nothing,
    /// All of it, in the plan.
    Text(String),
    /// What was read of it; more follows.
    Stream(Vec<u8>),
    /// The keys of this process's terminal.
    Terminal,
}

/// What there is, as it is wanted.
///
/// # Errors
/// A terminal is wanted where there is none.
pub(crate) fn read(wanted: StdinChoice) -> anyhow::Result<Stdin> {
    let stdin = io::stdin();
    match wanted {
        StdinChoice::Nothing => Ok(Stdin::Nothing),
        StdinChoice::Stream => Ok(Stdin::Stream(Vec::new())),
        StdinChoice::Terminal if stdin.is_terminal() => Ok(Stdin::Terminal),
        StdinChoice::Terminal => {
            let why = "-t needs a terminal as standard input; without one, -i passes what comes";
            Err(Misuse(why.to_owned()).into())
        }
        StdinChoice::Usual if stdin.is_terminal() || !is_stream(&stdin) => Ok(Stdin::Nothing),
        StdinChoice::Usual => {
            let mut looked = [PollFd::new(&stdin, PollFlags::IN)];
            let patience = Timespec { tv_sec: QUIET_S, tv_nsec: 0 };
            if matches!(poll(&mut looked, Some(&patience)), Ok(0)) {
                output::note(
                    "reading the command's input from standard input; --no-stdin disables this, -i starts without waiting",
                );
            }
            let mut bytes = Vec::new();
            let most = u64::try_from(MAX_STDIN_BYTES)?.saturating_add(1);
            stdin.lock().take(most).read_to_end(&mut bytes)?;
            Ok(usual(bytes))
        }
    }
}

/// How what was read of a pipe or file goes to the command: at most one byte more than the bound, and all there is below it.
/// Pure.
fn usual(bytes: Vec<u8>) -> Stdin {
    let is_whole = bytes.len() <= MAX_STDIN_BYTES;
    match String::from_utf8(bytes) {
        Ok(text) if text.is_empty() => Stdin::Nothing,
        Ok(text) if is_whole && !text.contains('\0') => Stdin::Text(text),
        Ok(text) => Stdin::Stream(text.into_bytes()),
        Err(bytes) => Stdin::Stream(bytes.into_bytes()),
    }
}

/// Whether somebody put something there: a pipe, a file or a socket.
fn is_stream(stdin: &io::Stdin) -> bool {
    let Ok(found) = rustix::fs::fstat(stdin) else { return false };
    matches!(
        FileType::from_raw_mode(found.st_mode),
        FileType::Fifo | FileType::RegularFile | FileType::Socket
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_text_is_a_part_of_the_plan_and_everything_else_is_streamed() {
        assert_eq!(usual(Vec::new()), Stdin::Nothing);
        assert_eq!(usual(b"text".to_vec()), Stdin::Text("text".into()));
        let most = vec![b'x'; MAX_STDIN_BYTES];
        assert!(matches!(usual(most.clone()), Stdin::Text(_)));
        let more = [most, b"x".to_vec()].concat();
        for bytes in [more, b"a\0b".to_vec(), b"\xff".to_vec()] {
            assert_eq!(usual(bytes.clone()), Stdin::Stream(bytes));
        }
    }
}
