//! Devices, found or made.

use std::fs;

use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};

use super::answer::{NOTHING, failed, open_read, said};
use super::entry::{Probe, probe};

const ABSENT: &[&str] = &["ENOENT"];
/// What an OCI runtime puts there.
const USUAL: [&str; 16] = [
    "console", "core", "fd", "full", "mqueue", "null", "ptmx", "pts", "random", "shm", "stderr",
    "stdin", "stdout", "tty", "urandom", "zero",
];

pub const PROBES: &[Probe] = &[
    probe("device.make-disk", "make the node of a disk", &["EPERM"], |_| {
        make(FileType::BlockDevice, 8, 0)
    }),
    probe("device.make-memory", "make the node of the memory", &["EPERM"], |_| {
        make(FileType::CharacterDevice, 1, 1)
    }),
    probe("device.mem", "open /dev/mem", ABSENT, |_| open_read("/dev/mem")),
    probe("device.kmsg", "open the kernel's log", ABSENT, |_| open_read("/dev/kmsg")),
    probe("device.kvm", "open the hypervisor", ABSENT, |_| open_read("/dev/kvm")),
    probe("device.fuse", "open fuse", ABSENT, |_| open_read("/dev/fuse")),
    probe("device.tun", "open a network tunnel", ABSENT, |_| open_read("/dev/net/tun")),
    probe("device.vsock", "open the vsock device", ABSENT, |_| open_read("/dev/vsock")),
    probe("device.loop", "open loop control", ABSENT, |_| open_read("/dev/loop-control")),
    probe("device.mapper", "open the device mapper", ABSENT, |_| open_read("/dev/mapper/control")),
    probe("device.others", "find a device beyond the usual ones", &[NOTHING], |_| others()),
];

fn make(kind: FileType, major: u32, minor: u32) -> String {
    let path = "/tmp/.probe-node";
    let made = mknodat(CWD, path, kind, Mode::RUSR, makedev(major, minor));
    if made.is_ok() {
        // Only where the sandbox does not hold: then no node is left to be used.
        let _ = fs::remove_file(path);
    }
    said(made)
}

fn others() -> String {
    let entries = match fs::read_dir("/dev") {
        Ok(entries) => entries,
        Err(error) => return failed(&error),
    };
    let mut names: Vec<String> = entries
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter(|name| !USUAL.contains(&name.as_str()))
        .collect();
    names.sort_unstable();
    if names.is_empty() { NOTHING.to_owned() } else { names.join(" ") }
}
