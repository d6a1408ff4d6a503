//! A stored machine: the memory of one whose init waits for its sandbox, and what its devices were.
//!
//! ```text
//! a machine that is nobody's --greeting--> stored, ended --> two files in memory, sealed
//!      each restored machine   memory mapped copy-on-write, devices read: a process of its own
//! ```
//! **Nobody can write to a sealed file**, neither the emulators that inherit it nor this worker, and
//! neither has a name: what a machine is restored from is what was stored, or it is gone.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use nix::fcntl::{FallocateFlags, FcntlArg, SealFlag, fallocate, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};

use super::bare::Bare;
use super::machine::Machine;
use super::qemu::{Lent, Shape, Start};
use super::qmp::Monitor;
use crate::runtime::Runtime;

/// From its start to its greeting, in software on a busy host.
const BOOT_MS: u64 = 60_000;
/// Each thing that an emulator is told. Usually milliseconds.
const TELL_MS: u64 = 10_000;
const PAGE: usize = 4_096;
/// Pages that are looked at in one go.
const PAGES: usize = 64;

/// What machines of one shape are restored from.
#[derive(Debug)]
pub(crate) struct Template {
    memory: File,
    devices: File,
}

/// The host's side of a machine while it is restored.
#[derive(Debug)]
pub(crate) struct Restoring {
    pub template: Arc<Template>,
    monitor: Monitor,
    /// For the start of its emulator.
    pub lent: Option<Lent>,
}

impl Restoring {
    /// Why it is not the machine that it should be, if the emulator knows.
    pub fn complaint(&mut self) -> Option<String> {
        self.monitor.complaint()
    }
}

impl Template {
    /// Boots a machine of this shape and stores it. Blocking, for seconds.
    pub fn make(machine: &Machine, qemu: &Runtime, shape: Shape) -> Result<Self, String> {
        let words = |error: io::Error| error.to_string();
        let memory = file("machine-memory").map_err(words)?;
        memory.set_len(shape.mem_mb.saturating_mul(1024 * 1024)).map_err(words)?;
        let devices = file("machine-devices").map_err(words)?;
        let (ours, theirs) = UnixStream::pair().map_err(words)?;
        let lent = Lent::new(memory.as_fd(), theirs.as_fd()).map_err(words)?;
        drop(theirs);
        let limit = Duration::from_millis(BOOT_MS);
        let mut bare =
            Bare::start(machine, qemu, shape, &Start::Store(&lent), limit).map_err(words)?;
        drop(lent);
        bare.greeting()?;
        let told = Monitor::new(ours, Duration::from_millis(TELL_MS));
        told.and_then(|mut monitor| monitor.store(devices.as_fd())).map_err(words)?;
        bare.end().map_err(words)?;
        drop(bare);
        for file in [&memory, &devices] {
            sparse(file).and_then(|()| seal(file)).map_err(words)?;
        }
        Ok(Self { memory, devices })
    }

    /// What a new emulator needs to become this machine.
    pub fn lend(this: &Arc<Self>) -> io::Result<Restoring> {
        let (ours, theirs) = UnixStream::pair()?;
        let lent = Lent::new(this.memory.as_fd(), theirs.as_fd())?;
        let mut monitor = Monitor::new(ours, Duration::from_millis(TELL_MS))?;
        // Opened anew, so that each reads from the start. It is told before it listens.
        let devices = File::open(format!("/proc/self/fd/{}", this.devices.as_raw_fd()))?;
        monitor.restore(devices.as_fd())?;
        Ok(Restoring { template: Arc::clone(this), monitor, lent: Some(lent) })
    }
}

#[cfg(test)]
impl Template {
    /// Where the kernel shows its files to this process.
    pub fn paths(&self) -> [String; 2] {
        [&self.memory, &self.devices].map(|file| format!("/proc/self/fd/{}", file.as_raw_fd()))
    }

    /// The same memory with devices that were never its own.
    pub fn with_devices(self, bytes: &[u8]) -> Self {
        let mut devices = file("machine-devices").unwrap();
        std::io::Write::write_all(&mut devices, bytes).unwrap();
        Self { devices, ..self }
    }
}

fn file(name: &str) -> io::Result<File> {
    let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
    let made: OwnedFd = memfd_create(name, flags)?;
    Ok(made.into())
}

/// It has no other mapping that could be written through: the kernel refuses otherwise.
fn seal(file: &File) -> io::Result<()> {
    let seals = SealFlag::F_SEAL_SEAL
        | SealFlag::F_SEAL_SHRINK
        | SealFlag::F_SEAL_GROW
        | SealFlag::F_SEAL_WRITE;
    fcntl(file, FcntlArg::F_ADD_SEALS(seals))?;
    Ok(())
}

/// Gives back the pages that hold zeros: a booting kernel clears much that it does not keep.
fn sparse(file: &File) -> io::Result<()> {
    let mut reader = file;
    reader.seek(SeekFrom::Start(0))?;
    let (mut buffer, mut at) = (vec![0; PAGES * PAGE], 0_i64);
    let zeros = vec![0; PAGE];
    loop {
        let count = reader.read(&mut buffer)?;
        if count == 0 {
            return Ok(());
        }
        for page in buffer.get(..count).unwrap_or_default().chunks(PAGE) {
            let length = i64::try_from(page.len()).map_err(io::Error::other)?;
            if page.len() == PAGE && page == zeros {
                let hole =
                    FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
                fallocate(file, hole, at, length)?;
            }
            at += length;
        }
    }
}
