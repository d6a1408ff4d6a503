//! What an address is to somebody who must not reach this host by it: the one table that webhooks and
//! the egress proxy share. Pure.
//!
//! ```text
//! public    the whole internet routes it
//! private   an organisation's own network: for names that somebody consented to, or --webhook-private
//! loopback  this host: for --webhook-private alone
//! never     metadata services, link-local, multicast, reserved, what hides another address
//! ```
//! Documentation ranges are private: closed networks use them for their own mirrors.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Where an address leads, from the least to the most forbidden.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum AddressKind {
    /// The whole internet may route it.
    Public,
    /// Somebody's own network.
    Private,
    /// The host itself.
    Loopback,
    /// Nobody's business: credentials of clouds, neighbours on the link, groups, reserved ranges.
    Never,
}

/// Services of clouds that hand out credentials at addresses outside the link-local range.
const METADATA_V4: [Ipv4Addr; 2] = [
    // Azure's wire server and DHCP, and Alibaba's metadata inside the range of carrier-grade NAT.
    Ipv4Addr::new(168, 63, 129, 16),
    Ipv4Addr::new(100, 100, 100, 200),
];
/// The same under IPv6, inside the range of unique local addresses: Google's and Scaleway's. Amazon's
/// is a prefix.
const METADATA_V6: [Ipv6Addr; 2] = [
    Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254),
    Ipv6Addr::new(0xfd00, 0x42, 0, 0, 0, 0, 0, 0x42),
];

/// Where an address leads.
#[must_use]
pub fn kind_of(address: IpAddr) -> AddressKind {
    match address {
        IpAddr::V4(v4) => kind_of_v4(v4),
        IpAddr::V6(v6) => kind_of_v6(v6),
    }
}

fn kind_of_v4(v4: Ipv4Addr) -> AddressKind {
    if METADATA_V4.contains(&v4) {
        return AddressKind::Never;
    }
    match v4.octets() {
        [127, ..] => AddressKind::Loopback,
        // "This network", link-local, protocol assignments, the old 6to4 relays, benchmarks, groups and
        // everything reserved up to the broadcast address.
        [0, ..]
        | [169, 254, ..]
        | [192, 0, 0, _]
        | [192, 88, 99, _]
        | [198, 18 | 19, ..]
        | [224..=255, ..] => AddressKind::Never,
        // RFC 1918, carrier-grade NAT, and the three ranges for documents.
        [10, ..]
        | [172, 16..=31, ..]
        | [192, 168, ..]
        | [100, 64..=127, ..]
        | [192, 0, 2, _]
        | [198, 51, 100, _]
        | [203, 0, 113, _] => AddressKind::Private,
        _ => AddressKind::Public,
    }
}

fn kind_of_v6(v6: Ipv6Addr) -> AddressKind {
    if v6.is_loopback() {
        return AddressKind::Loopback;
    }
    if METADATA_V6.contains(&v6) {
        return AddressKind::Never;
    }
    let last = v4_at(v6, [12, 13, 14, 15]);
    match v6.segments() {
        // IPv4-mapped, and the well-known prefix of NAT64: the address inside is the one that is reached.
        [0, 0, 0, 0, 0, 0xffff, ..] | [0x64, 0xff9b, 0, 0, 0, 0, ..] => kind_of_v4(last),
        // A network's own NAT64: inside at the end, or where a prefix of 48 bits has it.
        [0x64, 0xff9b, 1, ..] => {
            let inside = [last, v4_at(v6, [6, 7, 9, 10])];
            let kinds = inside.into_iter().filter(|v4| !v4.is_unspecified()).map(kind_of_v4);
            kinds.max().map_or(AddressKind::Never, |kind| kind.max(AddressKind::Private))
        }
        // Amazon's metadata, then every other unique local address.
        [0xfd00, 0xec2, ..] => AddressKind::Never,
        [0xfc00..=0xfdff, ..] => AddressKind::Private,
        // The ranges for documents.
        [0x2001, 0xdb8, ..] | [0x3fff, 0..=0xfff, ..] => AddressKind::Private,
        // Teredo, benchmarks, overlay identifiers and other assignments; 6to4 hides an IPv4 address.
        [0x2001, 0..=0x1ff, ..] | [0x2002, ..] => AddressKind::Never,
        [0x2000..=0x3fff, ..] => AddressKind::Public,
        // Unspecified, IPv4-compatible and -translated, discard, link-local, site-local, groups, and what
        // is not assigned.
        _ => AddressKind::Never,
    }
}

fn v4_at(v6: Ipv6Addr, places: [usize; 4]) -> Ipv4Addr {
    let octets = v6.octets();
    Ipv4Addr::from(places.map(|place| octets.get(place).copied().unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PUBLIC: &[&str] = &[
        "1.1.1.1",
        "93.184.216.34",
        "100.63.255.255",
        "100.128.0.0",
        "172.15.255.255",
        "172.32.0.1",
        "168.63.129.17",
        "192.0.1.1",
        "192.0.3.1",
        "198.17.0.1",
        "198.20.0.1",
        "223.255.255.255",
        "2606:4700::1",
        "2001:4860:4860::8888",
        "2001:200::1",
        "3fff:1000::1",
        "::ffff:1.1.1.1",
        "64:ff9b::1.1.1.1",
    ];
    const PRIVATE: &[&str] = &[
        "10.0.0.1",
        "172.16.0.1",
        "172.31.255.255",
        "192.168.1.1",
        "100.64.0.1",
        "100.127.255.255",
        "100.100.100.201",
        "192.0.2.1",
        "198.51.100.7",
        "203.0.113.9",
        "fc00::1",
        "fd12:3456::1",
        "2001:db8::1",
        "3fff:fff::1",
        "::ffff:10.0.0.1",
        "64:ff9b::10.0.0.1",
        "64:ff9b:1::1.1.1.1",
        "64:ff9b:1:a00:0:100::",
    ];
    const LOOPBACK: &[&str] =
        &["127.0.0.1", "127.255.255.254", "::1", "::ffff:127.0.0.1", "64:ff9b::127.0.0.1"];
    const NEVER: &[&str] = &[
        "0.0.0.0",
        "0.1.2.3",
        "169.254.0.1",
        "169.254.169.254",
        "168.63.129.16",
        "100.100.100.200",
        "192.0.0.1",
        "192.0.0.192",
        "192.88.99.1",
        "198.18.0.1",
        "198.19.255.255",
        "224.0.0.1",
        "239.255.255.250",
        "240.0.0.1",
        "255.255.255.255",
        "::",
        "::127.0.0.1",
        "::1.1.1.1",
        "::ffff:0:1.1.1.1",
        "::ffff:169.254.169.254",
        "::ffff:168.63.129.16",
        "64:ff9b::169.254.169.254",
        "64:ff9b::168.63.129.16",
        "64:ff9b::100.100.100.200",
        "64:ff9b:1::",
        "64:ff9b:1::169.254.169.254",
        "64:ff9b:1:a9fe:a9:fe00::",
        "64:ff9b:2::1",
        "100::1",
        "2001::1",
        "2001:2::1",
        "2001:10::1",
        "2001:1ff::1",
        "2002:7f00:1::",
        "2002:808:808::1",
        "fd00:ec2::254",
        "fd00:ec2::23",
        "fd20:ce::254",
        "fd00:42::42",
        "fe80::1",
        "febf::1",
        "fec0::1",
        "ff02::1",
        "4000::1",
        "5f00::1",
    ];

    #[test]
    fn l1_every_address_has_the_kind_of_its_range_and_of_what_it_hides() {
        for (kind, table) in [
            (AddressKind::Public, PUBLIC),
            (AddressKind::Private, PRIVATE),
            (AddressKind::Loopback, LOOPBACK),
            (AddressKind::Never, NEVER),
        ] {
            for text in table {
                assert_eq!(kind_of(text.parse().unwrap()), kind, "{text}");
            }
        }
    }
}
