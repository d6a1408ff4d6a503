//! What the kernel counts of a network namespace, as its `/proc/PID/net` says it.

/// Attempts that no route led anywhere, of both versions of IP: out of `snmp`, and `snmp6`, which is absent
/// where the kernel has no IPv6. What is not there is 0.
#[must_use]
pub fn no_routes(snmp: &str, snmp6: &str) -> u64 {
    four(snmp).unwrap_or(0).saturating_add(six(snmp6).unwrap_or(0))
}

/// Names on one line, their values on the next.
fn four(text: &str) -> Option<u64> {
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("Ip: "));
    let at = lines.next()?.split(' ').position(|name| name == "OutNoRoutes")?;
    lines.next()?.split(' ').nth(at)?.parse().ok()
}

/// A name and its value on each line.
fn six(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("Ip6OutNoRoutes"))?;
    line.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_versions_are_read_by_name() {
        let snmp =
            "Ip: Forwarding OutRequests OutNoRoutes FragFails\nIp: 1 20 3 4\nTcp: A\nTcp: 9\n";
        let snmp6 = "Ip6OutRequests   7\nIp6OutNoRoutes \t 5\n";
        assert_eq!(no_routes(snmp, snmp6), 8);
        assert_eq!(no_routes(snmp, ""), 3);
        assert_eq!(no_routes("Ip: Forwarding\nIp: 1\n", snmp6), 5);
    }
}
