//! A port that one listener after the other has, and that no other program of this host gets in
//! between: a connection elsewhere may otherwise leave by it.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::os::fd::{AsRawFd as _, OwnedFd};

use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrIn, bind, getsockname, setsockopt, socket, sockopt,
};

/// A TCP port of loopback, until it is dropped. Its socket is bound and never listens, so that
/// whoever listens there with `SO_REUSEADDR` (as Tokio and PostgreSQL do) has the port.
#[derive(Debug)]
pub struct PortReservation {
    address: SocketAddr,
    _socket: OwnedFd,
}

impl PortReservation {
    /// Any that is free.
    ///
    /// # Panics
    ///
    /// No port is free.
    #[must_use]
    #[allow(clippy::new_without_default, reason = "each is another port")]
    pub fn new() -> Self {
        let socket = socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)
            .expect("a socket");
        setsockopt(&socket, sockopt::ReuseAddr, &true).expect("a socket option");
        let any = SockaddrIn::from(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0));
        bind(socket.as_raw_fd(), &any).expect("a free port");
        let bound: SockaddrIn = getsockname(socket.as_raw_fd()).expect("its address");
        Self { address: SocketAddr::V4(bound.into()), _socket: socket }
    }

    /// Where one listens.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }
}
