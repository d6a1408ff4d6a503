//! A stored machine: one whose init waits for its sandbox, as its emulator wrote it down.
//!
//! ```text
//! a machine that is nobody's --greeting--> stored, ended --> one file in memory, sealed
//!                                         each restored machine: a new process that reads it
//! ```
//! **Nobody can write to a sealed file**, neither the emulators that inherit it nor this worker, and
//! it has no name: what a machine is restored from is what was stored, or it is gone.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};

use super::qemu::InheritedFd;
use super::qmp::Control;
use super::shape::Shape;
use super::spare_machine::SpareMachine;
use crate::host::runtime::Runtime;
use crate::spec::machine::Machine;

/// From its start to its greeting, in software on a busy host.
const BOOT_MS: u64 = 60_000;
/// Each thing that an emulator is told. Usually milliseconds.
const TELL_MS: u64 = 30_000;

/// What machines of one shape are restored from.
#[derive(Debug)]
pub(crate) struct StoredMachine {
    state: File,
}

/// A stored machine from which one is restored.
#[derive(Debug)]
pub(crate) struct MachineRestore {
    pub stored: Arc<StoredMachine>,
    /// For the start of its emulator.
    pub lent: Option<InheritedFd>,
}

/// What a new emulator needs to become what this file holds: opened anew, so that it reads from the start.
pub(crate) fn lend(state: &File) -> io::Result<InheritedFd> {
    let state = File::open(format!("/proc/self/fd/{}", state.as_raw_fd()))?;
    InheritedFd::new(state.as_fd())
}

impl StoredMachine {
    /// Boots a machine of this shape and stores it. Blocking, for seconds.
    pub fn make(machine: &Machine, qemu: &Runtime, shape: Shape) -> Result<Self, String> {
        let words = |error: io::Error| error.to_string();
        let state = file().map_err(words)?;
        let (ours, theirs) = UnixStream::pair().map_err(words)?;
        let lent = InheritedFd::new(theirs.as_fd()).map_err(words)?;
        drop(theirs);
        let limit = Duration::from_millis(BOOT_MS);
        let mut bare =
            SpareMachine::start(machine, qemu, shape, Some(&lent), limit).map_err(words)?;
        drop(lent);
        bare.greeting()?;
        let limit = Duration::from_millis(TELL_MS);
        let told = Control::new(ours, limit);
        told.and_then(|mut control| control.store(state.as_fd().try_clone_to_owned()?, limit))
            .map_err(words)?;
        bare.end().map_err(words)?;
        drop(bare);
        seal(&state).map_err(words)?;
        Ok(Self { state })
    }

    /// What a new emulator needs to become this machine.
    pub fn lend(this: &Arc<Self>) -> io::Result<MachineRestore> {
        Ok(MachineRestore { stored: Arc::clone(this), lent: Some(lend(&this.state)?) })
    }
}

#[cfg(test)]
impl StoredMachine {
    /// Where the kernel shows its file to this process.
    pub fn path(&self) -> String {
        format!("/proc/self/fd/{}", self.state.as_raw_fd())
    }

    /// One that was never a machine.
    pub fn of(bytes: &[u8]) -> Self {
        let mut state = file().unwrap();
        std::io::Write::write_all(&mut state, bytes).unwrap();
        Self { state }
    }
}

fn file() -> io::Result<File> {
    let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
    let made: OwnedFd = memfd_create("machine", flags)?;
    Ok(made.into())
}

/// For good: the seals themselves are sealed.
fn seal(file: &File) -> io::Result<()> {
    let seals = SealFlag::F_SEAL_SEAL
        | SealFlag::F_SEAL_SHRINK
        | SealFlag::F_SEAL_GROW
        | SealFlag::F_SEAL_WRITE;
    fcntl(file, FcntlArg::F_ADD_SEALS(seals))?;
    Ok(())
}
