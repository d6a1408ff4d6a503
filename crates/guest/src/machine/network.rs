//! The loopback of a machine, which has no other network: its kernel starts with it down. And what the
//! kernel counts there.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

use cofferdam_guest::snmp;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, sendto, socket_with,
};

/// `RTM_NEWLINK`, asked for and acknowledged, for interface 1: set and change its flag "up".
const LOOPBACK_UP: [u32; 8] = [32, 0x0005_0010, 1, 0, 0, 1, 1, 1];
/// Of an acknowledgement: the header, then the error, 0 for none.
const ERROR_AT: std::ops::Range<usize> = 16..20;

/// What is read of each file: the counters of IP stand at its begin.
const HEAD_BYTES: usize = 2048;

/// The counters of the machine's one network, open.
#[derive(Debug)]
pub(super) struct Counters {
    four: File,
    /// Absent where the kernel has no IPv6.
    six: Option<File>,
    /// What was counted before the machine was anybody's.
    before: u64,
}

impl Counters {
    pub(super) fn open() -> io::Result<Self> {
        let four = File::open("/proc/self/net/snmp")?;
        let mut opened = Self { four, six: File::open("/proc/self/net/snmp6").ok(), before: 0 };
        opened.before = opened.no_routes();
        Ok(opened)
    }

    /// Attempts that no route led anywhere.
    pub(super) fn no_routes(&self) -> u64 {
        let six = self.six.as_ref().map(head).unwrap_or_default();
        snmp::no_routes(&head(&self.four), &six).saturating_sub(self.before)
    }
}

fn head(file: &File) -> String {
    let mut buffer = [0; HEAD_BYTES];
    let count = file.read_at(&mut buffer, 0).unwrap_or(0);
    String::from_utf8_lossy(buffer.get(..count).unwrap_or_default()).into_owned()
}

pub(super) fn loopback_up() -> io::Result<()> {
    // Without a protocol of its own it is that of routes and links.
    let link = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
    let message: Vec<u8> = LOOPBACK_UP.iter().flat_map(|word| word.to_ne_bytes()).collect();
    sendto(&link, &message, SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
    let mut answer = [0; 128];
    let (count, _) = recv(&link, &mut answer, RecvFlags::empty())?;
    let error = answer.get(..count).and_then(|answer| answer.get(ERROR_AT));
    match error.and_then(|bytes| bytes.try_into().ok()).map(i32::from_ne_bytes) {
        Some(0) => Ok(()),
        Some(code) => Err(io::Error::from_raw_os_error(code.saturating_neg())),
        None => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}
