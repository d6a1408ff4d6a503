//! Rings and messages as a monitor that was taken over may write them.

use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::os::unix::net::UnixStream;
use std::thread;

use cofferdam_hostile::fuzz;
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};

use super::*;
use crate::machine::disk::{CurrentDisk, Disk};
use crate::machine::erofs::Image;
use crate::machine::tree;

/// The machine's memory, which is the input and zeros behind it.
const MEMORY: u64 = 128 * 1024;
const THERE: u64 = 0x7000_0000_0000;
/// Where the seeds have their rings.
const TABLE: u64 = 0;
const AVAILABLE: u64 = 0x200;
const USED: u64 = 0x300;
const QUEUE: u32 = 16;

fn reader() -> disk::Reader {
    let empty = || Arc::new(Image::of(tree::directory([])).unwrap());
    disk::Reader::new(CurrentDisk::new(Arc::new(Disk::new(empty(), empty()).unwrap())))
}

fn memory() -> File {
    let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
    let file = File::from(memfd_create("fuzz", flags).unwrap());
    file.set_len(MEMORY).unwrap();
    fcntl(&file, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_SHRINK)).unwrap();
    file
}

#[test]
fn fuzz_a_queue_is_worked_off_or_left() {
    fuzz!("vhost", |bytes: &[u8]| {
        let file = memory();
        file.write_all_at(bytes, 0).unwrap();
        let mut device = Device::new(reader());
        let span = VhostUserMemoryRegion::new(0, MEMORY, THERE, 0);
        device.set_mem_table(&[span], vec![file], None).unwrap();
        device.set_vring_num(0, QUEUE).unwrap();
        let flags = VhostUserVringAddrFlags::empty();
        let [table, used, available] = [TABLE, USED, AVAILABLE].map(|place| THERE + place);
        device.set_vring_addr(0, flags, table, used, available, 0).unwrap();
        device.set_vring_base(0, 0).unwrap();
        device.queue.set_ready(true);
        // An error ends the machine, which is its own doing.
        let _ = device.set_vring_enable(0, true);
    });
}

#[test]
fn fuzz_messages_of_a_monitor_are_taken_or_end_its_disk() {
    fuzz!("vhost-messages", 500, |bytes: &[u8]| {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk");
        let listener = UnixListener::bind(&path).unwrap();
        let (_stop, theirs) = UnixStream::pair().unwrap();
        let server = thread::spawn(move || serve(listener, theirs, reader()));
        let mut monitor = UnixStream::connect(&path).unwrap();
        monitor.set_nonblocking(true).unwrap();
        // It may hang up in the middle.
        let _ = monitor.write(bytes);
        drop(monitor);
        let _ = server.join().unwrap();
    });
}
