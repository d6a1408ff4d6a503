//! Orders to a sealer: a byte each, some with descriptors.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

/// Descriptors of one job: its text, the layer, the file.
pub(super) const MAX_HANDED: usize = 3;
/// Leave the worker's mounts, by the descriptor of another mount namespace.
pub(super) const LEAVE: u8 = b'l';
/// Read nothing more of the layer.
pub(super) const HOLD: u8 = b'h';
/// Leave [`HOLD`] and seal from the first byte.
pub(super) const GO_ON: u8 = b's';

/// Gives an order.
pub(super) fn hand(socket: &UnixStream, order: u8, all: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_HANDED))];
    let mut handed = SendAncillaryBuffer::new(&mut space);
    if !all.is_empty() && !handed.push(SendAncillaryMessage::ScmRights(all)) {
        return Err(io::Error::other("too many descriptors"));
    }
    sendmsg(socket, &[IoSlice::new(&[order])], &mut handed, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// The next order, with its descriptors.
pub(super) fn handed(socket: &UnixStream) -> io::Result<(u8, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_HANDED))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut order = [0];
    let flags = RecvFlags::CMSG_CLOEXEC;
    recvmsg(socket, &mut [IoSliceMut::new(&mut order)], &mut ancillary, flags)?;
    let mut all = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(some) = message {
            all.extend(some);
        }
    }
    let [order] = order;
    Ok((order, all))
}
