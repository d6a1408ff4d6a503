//! The network: nothing but its own loopback.

use std::fs;
use std::io;
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixStream};
use std::time::Duration;

use nix::sys::socket::{AddressFamily, SockFlag, SockProtocol, SockType, socket};

use super::answer::{NOTHING, failed, said};
use super::entry::{Probe, probe};

/// An address on this machine or its link answers or refuses at once; waiting longer would only
/// tell how a firewall drops.
const CONNECT: Duration = Duration::from_millis(500);
const NO_ROUTE: &[&str] = &["ENETUNREACH"];
const NO_FAMILY: &[&str] = &["EAFNOSUPPORT"];

pub const PROBES: &[Probe] = &[
    probe("net.interfaces", "find an interface beyond loopback", &["lo"], |_| interfaces()),
    probe("net.routes", "find a route", &[NOTHING], |_| routes()),
    probe("net.host-loopback", "reach a service on the host's loopback", &["ECONNREFUSED"], |s| {
        connect(SocketAddr::from(([127, 0, 0, 1], s.host_port)))
    }),
    probe("net.host-abstract", "reach an abstract socket of the host", &["ECONNREFUSED"], |s| {
        abstract_socket(&s.host_socket)
    }),
    probe("net.metadata", "reach the cloud's metadata address", NO_ROUTE, |_| {
        connect(SocketAddr::from(([169, 254, 169, 254], 80)))
    }),
    // Connecting a datagram socket asks for a route and sends nothing.
    probe("net.internet", "find a way to the internet", NO_ROUTE, |_| {
        route("0.0.0.0:0", "192.0.2.1:443")
    }),
    probe("net.private", "find a way to the private network", NO_ROUTE, |_| {
        route("0.0.0.0:0", "10.0.0.1:443")
    }),
    probe(
        "net.ipv6",
        "find a way by IPv6",
        &["ENETUNREACH", "EADDRNOTAVAIL", "EAFNOSUPPORT"],
        |_| route("[::]:0", "[2001:db8::1]:443"),
    ),
    probe("net.raw", "make raw packets", &["EPERM"], |_| open(AddressFamily::Inet, SockType::Raw)),
    probe("net.packet", "listen to the link", NO_FAMILY, |_| {
        open(AddressFamily::Packet, SockType::Raw)
    }),
    probe("net.vsock", "talk to the hypervisor", NO_FAMILY, |_| {
        open(AddressFamily::Vsock, SockType::Stream)
    }),
    probe("net.alg", "reach the kernel's ciphers", NO_FAMILY, |_| {
        open(AddressFamily::Alg, SockType::SeqPacket)
    }),
];

fn interfaces() -> String {
    let text = fs::read_to_string("/proc/net/dev").unwrap_or_default();
    let names: Vec<&str> =
        text.lines().skip(2).filter_map(|line| line.split(':').next()).map(str::trim).collect();
    names.join(" ")
}

fn routes() -> String {
    match fs::read_to_string("/proc/net/route") {
        Ok(text) => match text.lines().count().saturating_sub(1) {
            0 => NOTHING.to_owned(),
            count => format!("{count} routes"),
        },
        Err(error) => failed(&error),
    }
}

pub fn connect(addr: SocketAddr) -> String {
    said(TcpStream::connect_timeout(&addr, CONNECT))
}

pub fn abstract_socket(name: &str) -> String {
    said(UnixAddr::from_abstract_name(name).and_then(|addr| UnixStream::connect_addr(&addr)))
}

fn route(from: &str, to: &str) -> String {
    said(UdpSocket::bind(from).and_then(|socket| socket.connect(to)))
}

fn open(family: AddressFamily, kind: SockType) -> String {
    let protocol = (family == AddressFamily::Inet).then_some(SockProtocol::Icmp);
    said(socket(family, kind, SockFlag::SOCK_CLOEXEC, protocol).map_err(io::Error::from))
}
