//! Storing the machine of a sandbox: its memory comes through a pipe, and is nowhere in plain but in it.
//!
//! ```text
//! us --migrate + a pipe--> the emulator, which goes on writing until all is there, and stands still then
//!   <------ pipe --------
//! ```
//! The emulator may have been taken over: what it writes is bounded in bytes and time, and is read by nobody but the next
//! emulator of this same sandbox.

use std::io::{self, Write};
use std::net::Shutdown;
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use tokio::process::Command;

use super::Disk;
use super::fingerprint::MemoryFingerprint;
use super::qemu::{self, InheritedFd};
use super::qmp::Control;
use crate::host::memory_pipe::{self, PipeBounds};

/// Each thing that an emulator is told, and its silence while it writes. Usually milliseconds.
const TELL: Duration = Duration::from_secs(30);
/// All of it: 16 GiB at the rate of a slow disk.
const STORE: Duration = Duration::from_secs(300);

/// Our end of the control socket of a sandbox's emulator.
#[derive(Debug, Clone)]
pub(crate) struct EmulatorOrders(Arc<UnixStream>);

impl EmulatorOrders {
    /// Has a program that is about to be started take orders. They are given once.
    pub fn to(command: &mut Command) -> io::Result<Self> {
        let (ours, theirs) = UnixStream::pair()?;
        qemu::control(command, &InheritedFd::new(theirs.as_fd())?);
        Ok(Self(Arc::new(ours)))
    }

    /// Has the emulator write its machine to `out`, in at most so many bytes. It does not go on then. Blocking.
    fn store(&self, out: &mut dyn Write, most: u64, goes_on: &dyn Fn() -> bool) -> io::Result<()> {
        let mut control = Control::new(self.0.try_clone()?, TELL)?;
        let (ours, theirs) = memory_pipe::pipe()?;
        // Ends with the talk.
        let (over, tell) = io::pipe()?;
        let most = PipeBounds { bytes: most, silence: TELL, all: STORE };
        thread::scope(|scope| {
            let told = scope.spawn(move || {
                let told = control.store(theirs.into(), STORE);
                drop(tell);
                told
            });
            let carried = memory_pipe::carry(ours, &over, out, most, goes_on);
            if carried.is_err() {
                // Whoever still waits for its answer does not any more.
                let _ = self.0.shutdown(Shutdown::Both);
            }
            let told = told.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            carried.and(told)
        })
    }
}

/// What stores the machine of a sandbox that runs.
#[derive(Debug, Clone)]
pub(crate) struct Storable {
    pub orders: EmulatorOrders,
    pub mark: MemoryFingerprint,
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
