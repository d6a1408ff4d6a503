//! What `exec` is given on its standard input: the command's own input.

use std::io::{self, IsTerminal, Read};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::FileType;

use super::exit::Misuse;
use super::output;

/// Bytes that are passed: they are a part of the plan, which is kept with the run for good.
pub(crate) const MAX_STDIN_BYTES: usize = 128 * 1024;
/// After so long without a byte, a person is told what is waited for.
const QUIET_S: i64 = 3;

/// All of it; `None` where there is none: a terminal, `/dev/null` or a closed stream.
///
/// # Errors
/// More than the bound, or what is not text: nothing is left out in silence.
pub(crate) fn read() -> anyhow::Result<Option<String>> {
    let stdin = io::stdin();
    if stdin.is_terminal() || !is_stream(&stdin) {
        return Ok(None);
    }
    let mut looked = [PollFd::new(&stdin, PollFlags::IN)];
    let patience = Timespec { tv_sec: QUIET_S, tv_nsec: 0 };
    if matches!(poll(&mut looked, Some(&patience)), Ok(0)) {
        output::note("reading the command's input from standard input; --no-stdin disables this");
    }
    let mut bytes = Vec::new();
    let most = u64::try_from(MAX_STDIN_BYTES)?.saturating_add(1);
    stdin.lock().take(most).read_to_end(&mut bytes)?;
    if bytes.len() > MAX_STDIN_BYTES {
        let why = format!(
            "standard input has more than {MAX_STDIN_BYTES} bytes: put it into a file of a directory that --work \
             gives, and read that, or say --no-stdin"
        );
        return Err(Misuse(why).into());
    }
    match String::from_utf8(bytes) {
        Ok(text) if !text.contains('\0') => Ok((!text.is_empty()).then_some(text)),
        _ => {
            let why = "standard input is not text (UTF-8 without NUL): put it into a file of a directory that --work \
                       gives, and read that, or say --no-stdin";
            Err(Misuse(why.to_owned()).into())
        }
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
