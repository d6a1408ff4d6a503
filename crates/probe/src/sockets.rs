//! Families and protocols of sockets beyond what a task needs.

use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, getsockopt, setsockopt, socket, sockopt,
};

use super::answer::failed;
use super::entry::{Probe, probe};
use super::table::sockets;

const NO_FAMILY: &[&str] = &["EAFNOSUPPORT"];
/// Runtimes that read the filter as a list have no errno of its own for a second condition, and Docker's engine before 23
/// knows EPERM alone for what no rule names.
const NO_PROTOCOL: &[&str] = &["EAFNOSUPPORT", "ENOSYS", "EPERM"];
const RAW: libc::c_int = libc::SOCK_RAW;
const DATAGRAM: libc::c_int = libc::SOCK_DGRAM;
const NETLINK: libc::c_int = libc::AF_NETLINK;

pub const FAMILIES: &[Probe] = sockets!(NO_FAMILY, [
    "ax25" 3, DATAGRAM, 0;
    "ipx" 4, DATAGRAM, 0;
    "appletalk" 5, DATAGRAM, 0;
    "netrom" 6, libc::SOCK_SEQPACKET, 0;
    "bridge" 7, DATAGRAM, 0;
    "atmpvc" 8, DATAGRAM, 0;
    "x25" 9, libc::SOCK_SEQPACKET, 0;
    "rose" 11, libc::SOCK_SEQPACKET, 0;
    "decnet" 12, libc::SOCK_SEQPACKET, 0;
    "netbeui" 13, DATAGRAM, 0;
    "security" 14, DATAGRAM, 0;
    "key" 15, RAW, 2;
    "packet" 17, RAW, 0;
    "packet-datagram" 17, DATAGRAM, 0;
    "ash" 18, DATAGRAM, 0;
    "econet" 19, DATAGRAM, 0;
    "atmsvc" 20, DATAGRAM, 0;
    "rds" 21, libc::SOCK_SEQPACKET, 0;
    "irda" 23, DATAGRAM, 0;
    "pppox" 24, DATAGRAM, 0;
    "llc" 26, DATAGRAM, 0;
    "infiniband" 27, DATAGRAM, 0;
    "mpls" 28, DATAGRAM, 0;
    "can" 29, RAW, 1;
    "can-broadcast" 29, DATAGRAM, 2;
    "tipc" 30, DATAGRAM, 0;
    "bluetooth" 31, RAW, 1;
    "iucv" 32, DATAGRAM, 0;
    "rxrpc" 33, DATAGRAM, 2;
    "isdn" 34, RAW, 0;
    "phonet" 35, DATAGRAM, 0;
    "ieee802154" 36, DATAGRAM, 0;
    "caif" 37, libc::SOCK_SEQPACKET, 0;
    "ciphers" 38, libc::SOCK_SEQPACKET, 0;
    "nfc" 39, RAW, 0;
    "vsock-datagram" 40, DATAGRAM, 0;
    "kcm" 41, DATAGRAM, 0;
    "qipcrtr" 42, DATAGRAM, 0;
    "smc" 43, libc::SOCK_STREAM, 0;
    "xdp" 44, RAW, 0;
    "mctp" 45, DATAGRAM, 0;
    "no-such" 46, DATAGRAM, 0;
    "far-beyond" 4_096, DATAGRAM, 0;
]);

/// All but `NETLINK_ROUTE`, which tells of the sandbox's own network.
pub const PROTOCOLS: &[Probe] = sockets!(NO_PROTOCOL, [
    "netlink-user" NETLINK, RAW, 2;
    "netlink-firewall" NETLINK, RAW, 3;
    "netlink-sockets" NETLINK, RAW, 4;
    "netlink-nflog" NETLINK, RAW, 5;
    "netlink-xfrm" NETLINK, RAW, 6;
    "netlink-selinux" NETLINK, RAW, 7;
    "netlink-iscsi" NETLINK, RAW, 8;
    "netlink-audit" NETLINK, RAW, 9;
    "netlink-fib" NETLINK, RAW, 10;
    "netlink-connector" NETLINK, RAW, 11;
    "netlink-netfilter" NETLINK, RAW, 12;
    "netlink-ip6-firewall" NETLINK, RAW, 13;
    "netlink-decnet" NETLINK, RAW, 14;
    "netlink-uevent" NETLINK, RAW, 15;
    "netlink-generic" NETLINK, RAW, 16;
    "netlink-scsi" NETLINK, RAW, 18;
    "netlink-ecryptfs" NETLINK, RAW, 19;
    "netlink-rdma" NETLINK, RAW, 20;
    "netlink-crypto" NETLINK, RAW, 21;
    "netlink-smc" NETLINK, RAW, 22;
]);

pub const RAW_IP: &[Probe] = sockets!(&["EPERM", "EACCES"], [
    "raw-icmp" libc::AF_INET, RAW, 1;
    "raw-tcp" libc::AF_INET, RAW, 6;
    "raw-udp" libc::AF_INET, RAW, 17;
    "raw-gre" libc::AF_INET, RAW, 47;
    "raw-any" libc::AF_INET, RAW, 255;
    "raw-icmp6" libc::AF_INET6, RAW, 58;
    "raw-tcp6" libc::AF_INET6, RAW, 6;
    "raw-any6" libc::AF_INET6, RAW, 255;
]);

/// What a socket queues unread is kernel memory that no cgroup counts.
const LARGE: usize = 64 * 1024 * 1024;
const MOST: usize = 2 * 1024 * 1024;

pub const QUEUES: &[Probe] =
    &[probe("socket:receive-buffer", "queue megabytes that no cgroup counts", &["held"], |_| {
        let socket = socket(AddressFamily::Inet, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None);
        let found = socket.and_then(|socket| {
            setsockopt(&socket, sockopt::RcvBuf, &LARGE)?;
            getsockopt(&socket, sockopt::RcvBuf)
        });
        match found {
            Ok(bytes) if bytes <= MOST => "held".to_owned(),
            Ok(_) => "raised".to_owned(),
            Err(error) => failed(&error.into()),
        }
    })];
