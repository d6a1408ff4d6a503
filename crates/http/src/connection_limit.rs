//! How many connections may be open: in all, and from one address.
//!
//! Each connection is a descriptor and some memory. The database's connections, and the sandboxes of a
//! worker in the same process, need theirs whatever strangers do, so connections get a share alone.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, PoisonError};

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Connections of the network at once. A person or program has a handful; a thousand take 50 MB.
pub const MAX_CONNECTIONS: usize = 1_000;
/// Of one address that is not loopback: a proxy or a whole team behind one translator.
pub const MAX_CONNECTIONS_OF_ADDRESS: usize = 256;
/// On the local socket at once, which only root and the state directory's owner reach.
pub const MAX_LOCAL_CONNECTIONS: usize = 256;
/// Connections take at most this part of the descriptors; the rest is the database's and the worker's.
const SHARE: u64 = 4;
/// Of the local socket, a quarter of that.
const LOCAL_SHARE: u64 = 16;
/// A process with so few descriptors serves this many all the same.
const FEWEST: usize = 16;

/// How many connections each kind of listener may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ConnectionShares {
    pub network: usize,
    pub local: usize,
}

impl ConnectionShares {
    /// Of this process, after taking the descriptors that a full house needs, if they may be had.
    pub(crate) fn of_this_process() -> Self {
        let wanted = u64::try_from(MAX_CONNECTIONS).unwrap_or(u64::MAX).saturating_mul(SHARE);
        let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap_or((FEW, FEW));
        let most = wanted.min(hard);
        if soft < most && setrlimit(Resource::RLIMIT_NOFILE, most, hard).is_ok() {
            return Self::of(most);
        }
        Self::of(soft)
    }

    fn of(descriptors: u64) -> Self {
        let part = |share: u64, most: usize| {
            usize::try_from(descriptors / share).unwrap_or(usize::MAX).clamp(FEWEST, most)
        };
        Self {
            network: part(SHARE, MAX_CONNECTIONS),
            local: part(LOCAL_SHARE, MAX_LOCAL_CONNECTIONS),
        }
    }
}

/// Where the kernel does not say how many there are.
const FEW: u64 = 1_024;

/// The connections of one listener.
#[derive(Debug)]
pub(crate) struct ConnectionLimit {
    most: usize,
    held: Mutex<ConnectionCounts>,
}

#[derive(Debug, Default)]
struct ConnectionCounts {
    all: usize,
    by_address: HashMap<IpAddr, usize>,
}

/// One connection's slot, which is given back when it is dropped. Each request carries its connection's among its extensions, in
/// an `Arc`: what outlives the connection, such as a tunnel, keeps it.
#[derive(Debug)]
pub struct ConnectionPermit {
    bound: Arc<ConnectionLimit>,
    of: Option<IpAddr>,
}

impl ConnectionLimit {
    pub(crate) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { most, held: Mutex::default() })
    }

    /// A slot for a connection from this address, or for a local one; `None` where it is full.
    pub(crate) fn place(self: &Arc<Self>, from: Option<IpAddr>) -> Option<ConnectionPermit> {
        let of = from.map(origin);
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        if held.all >= self.most {
            return None;
        }
        if let Some(of) = of {
            let count = held.by_address.entry(of).or_default();
            if !of.is_loopback() && *count >= MAX_CONNECTIONS_OF_ADDRESS {
                return None;
            }
            *count += 1;
        }
        held.all += 1;
        Some(ConnectionPermit { bound: Arc::clone(self), of })
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        let mut held = self.bound.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.all -= 1;
        let Some(of) = self.of else { return };
        if let Some(count) = held.by_address.get_mut(&of) {
            *count -= 1;
            if *count == 0 {
                held.by_address.remove(&of);
            }
        }
    }
}

/// Who is counted as one: an IPv4 address, or the 64 bits of IPv6 that one subscriber has whole.
fn origin(from: IpAddr) -> IpAddr {
    match from.to_canonical() {
        IpAddr::V6(v6) if !v6.is_loopback() => {
            let [a, b, c, d, ..] = v6.segments();
            IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0))
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn m1_an_address_has_its_part_loopback_the_whole_and_places_come_back() {
        let bound = ConnectionLimit::new(300);
        let take = |from: &str| bound.place(Some(from.parse().unwrap()));
        let mut held: Vec<ConnectionPermit> = (0..256).filter_map(|_| take("192.0.2.1")).collect();
        assert_eq!(held.len(), 256);
        assert!(take("192.0.2.1").is_none() && take("::ffff:192.0.2.1").is_none());
        held.extend((0..43).filter_map(|_| take("127.0.0.1")));
        held.extend(take("2001:db8::1"));
        assert_eq!(held.len(), 300);
        assert!(take("127.0.0.1").is_none(), "it is full");
        drop(held);
        let held: Vec<ConnectionPermit> = (0..400).filter_map(|_| take("127.0.0.1")).collect();
        assert_eq!(held.len(), 300);
        drop(held);
        let of_one_net: Vec<ConnectionPermit> =
            (0..300_u32).filter_map(|n| take(&format!("2001:db8::{n:x}"))).collect();
        assert_eq!(of_one_net.len(), 256);
        drop(of_one_net);
        assert!(bound.held.lock().unwrap().by_address.is_empty());
    }

    #[test]
    fn m1_connections_never_take_more_than_a_share_of_the_descriptors() {
        assert_eq!(ConnectionShares::of(1_024), ConnectionShares { network: 256, local: 64 });
        assert_eq!(ConnectionShares::of(20_000), ConnectionShares { network: 1_000, local: 256 });
        assert_eq!(ConnectionShares::of(10), ConnectionShares { network: 16, local: 16 });
    }
}
