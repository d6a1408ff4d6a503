//! Storing the machine of a sandbox: its memory comes through a pipe, and is nowhere in plain but in it.
//!
//! ```text
//! us --migrate + a pipe--> the emulator, which goes on writing until all is there, and stands still then
//!   <------ pipe --------
//! ```
//! The emulator may have been taken over: what it writes is bounded in bytes and time, and is read by nobody but the next
//! emulator of this same sandbox.

use std::io::{self, PipeReader, Read, Write};
use std::net::Shutdown;
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use cofferdam_ambient::clock::Stopwatch;
use nix::fcntl::{FcntlArg, fcntl};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::process::Command;

use super::Disk;
use super::mark::Mark;
use super::qemu::{self, Lent};
use super::qmp::Control;

/// Each thing that an emulator is told, and its silence while it writes. Usually milliseconds.
const TELL: Duration = Duration::from_secs(30);
/// Between two looks whether it is still wanted.
const LOOK: Duration = Duration::from_millis(500);
/// All of it: 16 GiB at the rate of a slow disk.
const STORE_MS: u64 = 300_000;
const READ_BYTES: usize = 256 * 1024;
/// The largest pipe that a kernel gives without being told otherwise.
const PIPE_BYTES: i32 = 1024 * 1024;

/// Our end of the control socket of a sandbox's emulator.
#[derive(Debug, Clone)]
pub(crate) struct EmulatorOrders(Arc<UnixStream>);

impl EmulatorOrders {
    /// Has a program that is about to be started take orders. They are given once.
    pub fn to(command: &mut Command) -> io::Result<Self> {
        let (ours, theirs) = UnixStream::pair()?;
        qemu::control(command, &Lent::new(theirs.as_fd())?);
        Ok(Self(Arc::new(ours)))
    }

    /// Has the emulator write its machine to `out`, in at most so many bytes. It does not go on then. Blocking.
    fn store(&self, out: &mut dyn Write, most: u64, goes_on: &dyn Fn() -> bool) -> io::Result<()> {
        let mut control = Control::new(self.0.try_clone()?, TELL)?;
        let (ours, theirs) = io::pipe()?;
        let (over, tell) = io::pipe()?;
        // A smaller one is slower, and no fault.
        let _ = fcntl(&ours, FcntlArg::F_SETPIPE_SZ(PIPE_BYTES));
        thread::scope(|scope| {
            let told = scope.spawn(move || {
                let told = control.store(theirs.into());
                drop(tell);
                told
            });
            let carried = carry((ours, &over), out, most, goes_on);
            if carried.is_err() {
                // Whoever still waits for its answer does not any more.
                let _ = self.0.shutdown(Shutdown::Both);
            }
            let told = told.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            carried.and(told)
        })
    }
}

/// Carries what comes to its end, or to that of the talk: nothing follows that.
fn carry(
    (mut from, over): (PipeReader, &PipeReader),
    out: &mut dyn Write,
    most: u64,
    goes_on: &dyn Fn() -> bool,
) -> io::Result<()> {
    let (clock, mut left) = (Stopwatch::start(), most);
    let mut piece = vec![0; READ_BYTES];
    let patience = Timespec::try_from(LOOK).map_err(io::Error::other)?;
    let mut silent = Stopwatch::start();
    loop {
        let mut ready = [PollFd::new(&from, PollFlags::IN), PollFd::new(over, PollFlags::IN)];
        let is_ready = poll(&mut ready, Some(&patience))? > 0;
        if silent.elapsed() > TELL || clock.elapsed_ms() > STORE_MS {
            return Err(io::ErrorKind::TimedOut.into());
        }
        if !goes_on() {
            return Err(io::Error::other("its sandbox is to end"));
        }
        if !is_ready {
            continue;
        }
        silent = Stopwatch::start();
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
    }
}

/// What stores the machine of a sandbox that runs.
#[derive(Debug, Clone)]
pub(crate) struct Storable {
    pub orders: EmulatorOrders,
    pub mark: Mark,
    pub disk: Arc<Disk>,
}

impl Storable {
    /// What its memory goes on with.
    pub fn mark(&self) -> String {
        self.mark.with(&self.disk)
    }

    /// Writes its memory. Whatever comes of it, the machine is over. Blocking.
    pub fn store(
        &self,
        out: &mut dyn Write,
        mem_bytes: u64,
        goes_on: &dyn Fn() -> bool,
    ) -> io::Result<()> {
        self.orders.store(out, most(mem_bytes), goes_on)
    }
}

/// Bytes that the state of a machine may have whose task has so many: its memory, 8 bytes around each page, some pages twice, and its
/// devices. Pure.
pub(crate) fn most(mem_bytes: u64) -> u64 {
    const OWN_BYTES: u64 = 128 * 1024 * 1024;
    mem_bytes.saturating_add(mem_bytes / 64).saturating_add(OWN_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn carried(bytes: usize, most: u64) -> io::Result<Vec<u8>> {
        let (ours, mut theirs) = io::pipe().unwrap();
        let writing = thread::spawn(move || {
            // Who reads may have given up.
            let _ = theirs.write_all(&vec![7; bytes]);
        });
        let (over, _tell) = io::pipe().unwrap();
        let mut out = Vec::new();
        let done = carry((ours, &over), &mut out, most, &|| true);
        writing.join().unwrap();
        done.map(|()| out)
    }

    #[test]
    fn what_an_emulator_writes_has_a_bound() {
        assert_eq!(carried(3_000_000, 3_000_000).unwrap(), vec![7; 3_000_000]);
        let large = carried(3_000_000, 2_999_999).unwrap_err();
        assert_eq!(large.kind(), io::ErrorKind::FileTooLarge);
    }

    #[test]
    fn an_emulator_that_ends_or_lies_has_stored_nothing() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let orders = EmulatorOrders(Arc::new(ours));
        drop(theirs);
        assert!(orders.store(&mut Vec::new(), 1_000, &|| true).is_err(), "it has ended");
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let orders = EmulatorOrders(Arc::new(ours));
        theirs.write_all(b"{\"return\": {}}\n{\"error\": {\"desc\": \"no\"}}\n").unwrap();
        let refused = orders.store(&mut Vec::new(), 1_000, &|| true).unwrap_err();
        assert!(refused.to_string().contains("no"), "{refused}");
    }
}
