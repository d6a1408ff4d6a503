//! The server as a monitor sees it, and as one that means no good does.

use std::os::unix::fs::FileExt as _;
use std::os::unix::net::UnixStream;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use cofferdam_ambient::clock::Stopwatch;
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use std::os::fd::{AsRawFd as _, OwnedFd};
use vhost::VhostBackend as _;
use vhost::vhost_user::{Frontend, VhostUserFrontend as _};
use vhost::{VhostUserMemoryRegionInfo, VringConfigData};
use vmm_sys_util::eventfd::EventFd;

use super::*;
use crate::machine::disk::Disk;
use crate::machine::erofs::Image;
use crate::machine::tree;

const MEMORY: u64 = 1024 * 1024;
/// Where the monitor says that it has the memory, and where the rings lie in it.
const THERE: u64 = 0x7000_0000_0000;
const TABLE: u64 = 0x1000;
const AVAILABLE: u64 = 0x2000;
const USED: u64 = 0x3000;
const HEAD_AT: u64 = 0x4000;
const DATA_AT: u64 = 0x8000;
const STATUS_AT: u64 = 0x5000;
const QUEUE: u16 = 16;
const TO_US: u16 = 1;
const TO_THE_MACHINE: u16 = 3;

fn memory(is_sealed: bool) -> File {
    let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
    let file = File::from(memfd_create("test", flags).unwrap());
    file.set_len(MEMORY).unwrap();
    if is_sealed {
        fcntl(&file, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_SHRINK)).unwrap();
    }
    file
}

struct Client {
    frontend: Frontend,
    memory: File,
    kick: EventFd,
    call: EventFd,
    asked: u16,
    server: JoinHandle<io::Result<()>>,
    _stop: UnixStream,
}

impl Client {
    fn connect(memory: File) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk");
        let listener = UnixListener::bind(&path).unwrap();
        let (stop, theirs) = UnixStream::pair().unwrap();
        let empty = || Arc::new(Image::of(tree::directory([])).unwrap());
        let disk = Arc::new(Disk::new(empty(), empty()).unwrap());
        let server = thread::spawn(move || {
            serve(listener, theirs, disk::Reader::new(disk::CurrentDisk::new(disk)))
        });
        let frontend = Frontend::connect(&path, 1).unwrap();
        let [kick, call] = [0; 2].map(|_| EventFd::new(0).unwrap());
        Self { frontend, memory, kick, call, asked: 0, server, _stop: stop }
    }

    /// Everything up to the queue, as monitors do it.
    fn begin(&mut self) -> Vec<u8> {
        let front = &mut self.frontend;
        front.set_owner().unwrap();
        let features = front.get_features().unwrap();
        front.set_features(features).unwrap();
        let protocol = front.get_protocol_features().unwrap();
        assert!(protocol.contains(VhostUserProtocolFeatures::CONFIG));
        front.set_protocol_features(protocol).unwrap();
        let flags = VhostUserConfigFlags::WRITABLE;
        let (_, config) = front.get_config(0, 60, flags, &[0; 60]).unwrap();
        config
    }

    fn show_memory(&mut self) {
        let region = VhostUserMemoryRegionInfo {
            guest_phys_addr: 0,
            memory_size: MEMORY,
            userspace_addr: THERE,
            mmap_offset: 0,
            mmap_handle: self.memory.as_raw_fd(),
        };
        self.frontend.set_mem_table(&[region]).unwrap();
    }

    fn queue(&mut self) {
        let front = &mut self.frontend;
        front.set_vring_num(0, QUEUE).unwrap();
        let data = VringConfigData {
            queue_max_size: QUEUE,
            queue_size: QUEUE,
            flags: 0,
            desc_table_addr: THERE + TABLE,
            used_ring_addr: THERE + USED,
            avail_ring_addr: THERE + AVAILABLE,
            log_addr: None,
        };
        front.set_vring_addr(0, &data).unwrap();
        front.set_vring_base(0, 0).unwrap();
        front.set_vring_call(0, &self.call).unwrap();
        front.set_vring_kick(0, &self.kick).unwrap();
        front.set_vring_enable(0, true).unwrap();
    }

    /// One request whose data lies where it is said; its status, and how much is said to be written.
    fn ask(&mut self, kind: u32, sector: u64, data_at: u64, length: u32) -> (u8, u32) {
        let mut head = kind.to_le_bytes().to_vec();
        head.extend_from_slice(&[0; 4]);
        head.extend_from_slice(&sector.to_le_bytes());
        self.memory.write_all_at(&head, HEAD_AT).unwrap();
        self.memory.write_all_at(&[0xEE], STATUS_AT).unwrap();
        let parts = [
            (HEAD_AT, 16, TO_US, 1_u16),
            (data_at, length, TO_THE_MACHINE, 2),
            (STATUS_AT, 1, 2, 0),
        ];
        for (place, (address, length, flags, next)) in (0_u64..).zip(parts) {
            let mut bytes = address.to_le_bytes().to_vec();
            bytes.extend_from_slice(&length.to_le_bytes());
            bytes.extend_from_slice(&flags.to_le_bytes());
            bytes.extend_from_slice(&next.to_le_bytes());
            self.memory.write_all_at(&bytes, TABLE + place * 16).unwrap();
        }
        let slot = u64::from(self.asked % QUEUE);
        self.memory.write_all_at(&[0, 0], AVAILABLE + 4 + slot * 2).unwrap();
        self.asked += 1;
        self.memory.write_all_at(&self.asked.to_le_bytes(), AVAILABLE + 2).unwrap();
        self.kick.write(1).unwrap();
        let clock = Stopwatch::start();
        while let Err(error) = self.call.read() {
            assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
            assert!(clock.elapsed_ms() < 20_000, "nothing was answered");
            thread::yield_now();
        }
        let mut used = [0; 2];
        self.memory.read_exact_at(&mut used, USED + 2).unwrap();
        assert_eq!(u16::from_le_bytes(used), self.asked, "it was answered");
        let (mut status, mut written) = ([0], [0; 4]);
        self.memory.read_exact_at(&mut status, STATUS_AT).unwrap();
        self.memory.read_exact_at(&mut written, USED + 4 + slot * 8 + 4).unwrap();
        (status[0], u32::from_le_bytes(written))
    }

    fn end(self) -> io::Result<()> {
        drop(self.frontend);
        self.server.join().unwrap()
    }
}

#[test]
fn a_monitor_reads_the_disk_into_its_machine_and_can_do_nothing_else() {
    let mut client = Client::connect(memory(true));
    let config = client.begin();
    assert_eq!(config[..8], (SIZE / SECTOR).to_le_bytes());
    client.show_memory();
    client.queue();
    assert_eq!(client.ask(KIND_READ, 0, DATA_AT, 512), (DONE, 513));
    let mut table = [0; 512];
    client.memory.read_exact_at(&mut table, DATA_AT).unwrap();
    assert_eq!(table[510..], [0x55, 0xAA], "the table of the partitions");
    let before = table;
    // Writing, flushing, what lies behind the end, and a number that wraps.
    assert_eq!(client.ask(1, 0, DATA_AT, 512).0, FAILED);
    assert_eq!(client.ask(4, 0, DATA_AT, 512).0, UNSUPPORTED);
    assert_eq!(client.ask(KIND_READ, SIZE / SECTOR, DATA_AT, 512).0, FAILED);
    assert_eq!(client.ask(KIND_READ, u64::MAX / 2, DATA_AT, 512).0, FAILED);
    // Data outside of the machine's memory are no request, and the next one is answered all the same.
    assert_eq!(client.ask(KIND_READ, 0, MEMORY - 256, 512), (0xEE, 0));
    assert_eq!(client.ask(KIND_READ, 0, u64::MAX - 16, 512), (0xEE, 0));
    assert_eq!(client.ask(KIND_READ, 0, DATA_AT, u32::MAX), (0xEE, 0));
    assert_eq!(client.ask(KIND_READ, 0, DATA_AT, 512), (DONE, 513));
    client.memory.read_exact_at(&mut table, DATA_AT).unwrap();
    assert_eq!(table, before, "the disk is as it was");
    client.end().unwrap();
}

#[test]
fn memory_that_could_be_taken_away_is_refused_before_it_is_read() {
    for file in [memory(false), tempfile::tempfile().unwrap()] {
        file.set_len(MEMORY).unwrap();
        let mut client = Client::connect(file);
        client.begin();
        // Whether it is told so or finds the connection closed is a matter of who is faster.
        let region = VhostUserMemoryRegionInfo {
            guest_phys_addr: 0,
            memory_size: MEMORY,
            userspace_addr: THERE,
            mmap_offset: 0,
            mmap_handle: client.memory.as_raw_fd(),
        };
        let _ = client.frontend.set_mem_table(&[region]);
        let said = client.server.join().unwrap().unwrap_err().to_string();
        assert!(said.contains("could be taken away"), "{said}");
    }
}

#[test]
fn a_server_that_nobody_connects_to_ends_with_its_sandbox() {
    let dir = tempfile::tempdir().unwrap();
    let listener = UnixListener::bind(dir.path().join("disk")).unwrap();
    let (stop, theirs) = UnixStream::pair().unwrap();
    let empty = || Arc::new(Image::of(tree::directory([])).unwrap());
    let disk = Arc::new(Disk::new(empty(), empty()).unwrap());
    let (done, was_done) = std::sync::mpsc::channel();
    let server = thread::spawn(move || {
        let ended =
            serve(listener, OwnedFd::from(theirs), disk::Reader::new(disk::CurrentDisk::new(disk)));
        done.send(ended.is_ok()).unwrap();
    });
    assert!(was_done.recv_timeout(Duration::from_millis(50)).is_err(), "it waits");
    drop(stop);
    assert!(was_done.recv_timeout(Duration::from_secs(20)).unwrap());
    server.join().unwrap();
}
