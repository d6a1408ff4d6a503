//! The pipe through which a kernel or an emulator writes the memory of a sandbox. Whoever writes may have been taken over: bytes
//! and silences are bounded.

use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::fd::AsFd;
use std::time::Duration;

use cofferdam_ambient::clock::Stopwatch;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::pipe::fcntl_setpipe_size;

const READ_BYTES: usize = 256 * 1024;
/// The largest pipe that a kernel gives without being told otherwise.
const PIPE_BYTES: usize = 1024 * 1024;
/// Between two looks whether it is still wanted.
const LOOK: Duration = Duration::from_millis(500);

/// What whoever writes may take.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PipeBounds {
    pub bytes: u64,
    /// Until the next byte.
    pub silence: Duration,
    /// Until the last one.
    pub all: Duration,
}

/// A pipe for a memory.
pub(crate) fn pipe() -> io::Result<(PipeReader, PipeWriter)> {
    let (ours, theirs) = io::pipe()?;
    // A smaller one is slower, and no fault.
    let _ = fcntl_setpipe_size(&ours, PIPE_BYTES);
    Ok((ours, theirs))
}

/// Carries what comes to its end, or until `answer` has something: nothing follows that. Blocking; once `goes_on` says no, it is
/// an error.
pub(crate) fn carry(
    mut from: PipeReader,
    answer: &impl AsFd,
    out: &mut dyn Write,
    most: PipeBounds,
    goes_on: &dyn Fn() -> bool,
) -> io::Result<()> {
    let mut piece = vec![0; READ_BYTES];
    let mut left = most.bytes;
    let patience = Timespec::try_from(LOOK).map_err(io::Error::other)?;
    let (clock, mut silent) = (Stopwatch::start(), Stopwatch::start());
    loop {
        let mut ready = [PollFd::new(&from, PollFlags::IN), PollFd::new(answer, PollFlags::IN)];
        let is_ready = poll(&mut ready, Some(&patience))? > 0;
        if !goes_on() {
            return Err(io::Error::other("its sandbox is to end"));
        }
        if !is_ready && silent.elapsed() > most.silence || clock.elapsed() > most.all {
            return Err(io::ErrorKind::TimedOut.into());
        }
        if !is_ready {
            continue;
        }
        let [pipe, _] = ready;
        if pipe.revents().is_empty() {
            return Ok(());
        }
        let count = from.read(&mut piece)?;
        if count == 0 {
            return Ok(());
        }
        let length = u64::try_from(count).unwrap_or(u64::MAX);
        left = left.checked_sub(length).ok_or(io::ErrorKind::FileTooLarge)?;
        out.write_all(piece.get(..count).unwrap_or_default())?;
        // A slow disk of ours is no silence of whoever writes.
        silent = Stopwatch::start();
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    const MOST: PipeBounds = PipeBounds {
        bytes: 3_000_000,
        silence: Duration::from_millis(50),
        all: Duration::from_secs(60),
    };

    fn carried(bytes: usize, most: PipeBounds) -> io::Result<Vec<u8>> {
        let (ours, mut theirs) = pipe().unwrap();
        let writing = thread::spawn(move || {
            // Who reads may have given up.
            let _ = theirs.write_all(&vec![7; bytes]);
        });
        let (answer, _tell) = io::pipe().unwrap();
        let mut out = Vec::new();
        let done = carry(ours, &answer, &mut out, most, &|| true);
        writing.join().unwrap();
        done.map(|()| out)
    }

    #[test]
    fn what_is_written_has_a_bound() {
        assert_eq!(carried(3_000_000, MOST).unwrap(), vec![7; 3_000_000]);
        let large = carried(3_000_000, PipeBounds { bytes: 2_999_999, ..MOST }).unwrap_err();
        assert_eq!(large.kind(), io::ErrorKind::FileTooLarge);
    }

    #[test]
    fn silence_and_an_end_that_is_wanted_are_no_memory() {
        let still = |most, goes_on: bool| {
            let (ours, _theirs) = pipe().unwrap();
            let (answer, _tell) = io::pipe().unwrap();
            carry(ours, &answer, &mut Vec::new(), most, &|| goes_on).unwrap_err()
        };
        assert_eq!(still(MOST, true).kind(), io::ErrorKind::TimedOut);
        let long = Duration::from_secs(60);
        let unwanted = still(PipeBounds { silence: long, ..MOST }, false);
        assert!(unwanted.to_string().contains("to end"), "{unwanted}");
        let late = still(PipeBounds { silence: long, all: Duration::ZERO, ..MOST }, true);
        assert_eq!(late.kind(), io::ErrorKind::TimedOut);
    }
}
