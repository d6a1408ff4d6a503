//! Doors: ports of the sandbox's loopback whose connections the host serves.
//!
//! ```text
//! client -> 127.0.0.53:3128 -> agent  == CONNECT tcp:3128 ==>  host
//! client -> 127.0.0.53:53   -> agent  == CONNECT udp:53 =====>  host    one question, one answer
//! ```
//! The request that opens the doors is answered when all of them listen. Its two bodies then are the
//! stream of a second HTTP/2 connection in which the roles are swapped: the agent is the client and
//! asks for one stream with each connection that it accepted. So each connection has windows of its
//! own, and one that nobody reads holds up neither another nor the agent's own routes. A datagram and
//! its answer travel as DNS does over TCP, behind their length in two bytes.
//!
//! The doors close, and every connection through them ends, when the request's body does; the answer
//! ends after that.

use std::net::Ipv4Addr;

use serde::{Deserialize, Serialize};

/// Doors of one request: a bound, far beyond the five that there are.
pub const MAX_DOORS: usize = 16;
/// Bytes of a datagram: what DNS promises to every client.
pub const MAX_DATAGRAM_BYTES: usize = 512;

/// Where the agent is to listen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Doors {
    /// An address of the loopback.
    pub address: Ipv4Addr,
    /// Ports for connections.
    pub tcp: Vec<u16>,
    /// Ports for datagrams.
    pub udp: Vec<u16>,
}

/// One of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Door {
    /// For connections, at this port.
    Tcp(u16),
    /// For datagrams, at this port.
    Udp(u16),
}

impl Door {
    /// As the target of a CONNECT.
    #[must_use]
    pub fn authority(self) -> String {
        match self {
            Self::Tcp(port) => format!("tcp:{port}"),
            Self::Udp(port) => format!("udp:{port}"),
        }
    }

    /// Parses what [`Door::authority`] wrote; `None` for any other text.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (kind, port) = text.split_once(':')?;
        let port = port.parse().ok()?;
        match kind {
            "tcp" => Some(Self::Tcp(port)),
            "udp" => Some(Self::Udp(port)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_door_is_named_by_its_kind_and_port() {
        for door in [Door::Tcp(1), Door::Tcp(65_535), Door::Udp(53)] {
            assert_eq!(Door::parse(&door.authority()), Some(door));
        }
        for text in ["", "tcp", "tcp:", "tcp:65536", "tcp:-1", "sctp:1", "a.example:443"] {
            assert_eq!(Door::parse(text), None, "{text}");
        }
    }
}
