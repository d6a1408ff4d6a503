//! What the stored memory of a machine goes on with, and with nothing else.
//!
//! A memory has its kernel, its init and what they have read of their disk. Another emulator reads it otherwise, another shape has no
//! place for it, and a disk that changed below a kernel gives a task pieces of two files.

use cofferdam_contracts::canonical::digest_bytes;
use cofferdam_guest::setup::{SEED_BYTES, Setup};

use super::Disk;
use super::shape::Shape;
use crate::host::runtime::Runtime;
use crate::spec::machine::{Accel, Machine};

/// Ends the name of a line.
const IS: &str = ": ";
/// What the kernel follows, in a runtime's version.
const KERNEL: &str = ", Linux ";
/// Bytes of a mark.
pub(crate) const MAX_MARK: u64 = 64 * 1024;

/// All but what its disk shows.
#[derive(Debug, Clone)]
pub(crate) struct MemoryFingerprint(String);

impl MemoryFingerprint {
    pub(super) fn of(machine: &Machine, qemu: &Runtime, shape: Shape, setup: &Setup) -> Self {
        let emulator = qemu.version.split(KERNEL).next().unwrap_or_default();
        let processor = match machine.accel {
            Accel::Kvm => "the host's",
            Accel::Software { .. } => "emulated",
        };
        // Its name is the digest of all that it is made of.
        let files = machine.initrd.parent().and_then(|dir| dir.file_name()).unwrap_or_default();
        let setup = Setup { seed: [0; SEED_BYTES], is_filled: false, ..setup.clone() };
        let limits = serde_json::to_vec(&setup).map(|setup| digest_bytes(&setup).to_string());
        let lines = [
            ("the emulator", emulator.to_owned()),
            ("the processor", processor.to_owned()),
            ("the kernel", machine.release.clone()),
            ("the initial files", files.to_string_lossy().into_owned()),
            ("the shape", format!("{} MiB, {} processors", shape.mem_mb, shape.cpus)),
            ("the limits", limits.unwrap_or_default()),
        ];
        let line = |(name, is): (&str, String)| format!("{name}{IS}{}\n", is.replace('\n', " "));
        Self(lines.map(line).concat())
    }

    /// The whole of it, with a disk.
    pub fn with(&self, disk: &Disk) -> String {
        format!("{}the files of its host{IS}{}\n", self.0, disk.digest())
    }
}

/// In what a memory's mark differs from that of a machine that is to go on with it, in words.
pub(crate) fn differs(memory: &str, machine: &str) -> Option<String> {
    if memory == machine {
        return None;
    }
    let mut both = memory.lines().zip(machine.lines());
    let words = match both.find(|(was, is)| was != is) {
        Some((was, is)) => {
            let (name, was) = was.split_once(IS).unwrap_or((was, ""));
            let is = is.split_once(IS).map_or("", |(_, is)| is);
            format!("{name} changed: it was {was}, and is {is}")
        }
        None => "it is of another version".to_owned(),
    };
    Some(format!("its memory does not go on here, {words}; its files alone can be used"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_difference_is_named() {
        let one = "the emulator: QEMU 7\nthe kernel: 6.1\n";
        assert_eq!(differs(one, one), None);
        let words = differs(one, "the emulator: QEMU 7\nthe kernel: 6.12\n").unwrap();
        assert!(words.contains("the kernel changed: it was 6.1, and is 6.12;"), "{words}");
        assert!(differs(one, &format!("{one}more: x\n")).unwrap().contains("another version"));
        assert!(differs("", one).unwrap().contains("another version"));
    }
}
