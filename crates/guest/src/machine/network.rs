//! The loopback of a machine, which has no other network: its kernel starts with it down.

use std::io;
use std::os::fd::AsRawFd as _;

use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, recv, sendto, socket,
};

/// `RTM_NEWLINK`, asked for and acknowledged, for interface 1: set and change its flag "up".
const LOOPBACK_UP: [u32; 8] = [32, 0x0005_0010, 1, 0, 0, 1, 1, 1];
/// Of an acknowledgement: the header, then the error, 0 for none.
const ERROR_AT: std::ops::Range<usize> = 16..20;

pub(super) fn loopback_up() -> io::Result<()> {
    let route = SockProtocol::NetlinkRoute;
    let link = socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, route)?;
    let message: Vec<u8> = LOOPBACK_UP.iter().flat_map(|word| word.to_ne_bytes()).collect();
    sendto(link.as_raw_fd(), &message, &NetlinkAddr::new(0, 0), MsgFlags::empty())?;
    let mut answer = [0; 128];
    let count = recv(link.as_raw_fd(), &mut answer, MsgFlags::empty())?;
    let error = answer.get(..count).and_then(|answer| answer.get(ERROR_AT));
    match error.and_then(|bytes| bytes.try_into().ok()).map(i32::from_ne_bytes) {
        Some(0) => Ok(()),
        Some(code) => Err(io::Error::from_raw_os_error(code.saturating_neg())),
        None => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}
