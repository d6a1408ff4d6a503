//! Attempts that never reach the proxy are violations all the same.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a helper of tests fails its test"
)]

mod support;

use cofferdam_contracts::sandbox::{Phase, Violation, ViolationWhy};
use cofferdam_sandbox::{Command, Plan, Sandbox};
use serde_json::json;
use support::{verified, with_bench};

/// A connection and a datagram by each version of IP, to addresses that no host has.
const PROGRAM: &str = "\
import socket
for family, address in [(socket.AF_INET, '192.0.2.1'), (socket.AF_INET6, '2001:db8::1')]:
    for kind in [socket.SOCK_STREAM, socket.SOCK_DGRAM]:
        try:
            socket.socket(family, kind).connect((address, 443))
            raise SystemExit('reached')
        except OSError:
            pass
raise SystemExit(3)
";

fn unrouted(sandbox: &Sandbox, phase: Phase) -> Vec<Violation> {
    let (all, _) = sandbox.violations();
    all.into_iter().filter(|v| v.why == ViolationWhy::NoRoute && v.phase == phase).collect()
}

/// What a program does that asks who it is, or talks to itself: by name, by both versions, through
/// sockets of both kinds, and into nothing that listens.
const HARMLESS: &str = "\
import socket
socket.getaddrinfo('localhost', 80)
socket.getaddrinfo('127.0.0.1', 80)
socket.getfqdn()
for family, address in [(socket.AF_INET, '127.0.0.1'), (socket.AF_INET6, '::1')]:
    if family == socket.AF_INET6 and not socket.has_ipv6:
        continue
    with socket.socket(family) as server:
        server.bind((address, 0))
        server.listen()
        socket.create_connection(server.getsockname()[:2]).close()
    with socket.socket(family, socket.SOCK_DGRAM) as datagrams:
        datagrams.sendto(b'x', (address, 9))
try:
    socket.create_connection(('127.0.0.1', 1))
except ConnectionRefusedError:
    pass
";

fn python(plan: &Plan, phase: Phase, program: &str) -> Command {
    let argv = ["/usr/bin/python3", "-c", program].map(str::to_owned).to_vec();
    Command { argv, phase, ..plan.task.clone() }
}

#[test]
fn what_has_no_route_is_counted_in_its_phase_and_told_to_whoever_wonders() {
    with_bench(|bench| async move {
        let fields = json!({
            "net": ["a.example"], "build": {"cmd": ["true"], "net": ["a.example"]},
        });
        let (sandbox, plan) = bench.start(fields).await;
        let built = sandbox.exec(&python(&plan, Phase::Build, PROGRAM), |_, _| {}).await.unwrap();
        assert_eq!(built.exit, 3, "{built:?}");
        let cause = built.cause.unwrap();
        assert!(cause.contains("the build phase refused a connection (no route leads"), "{cause}");
        let build = unrouted(&sandbox, Phase::Build);
        assert_eq!(build.len(), 1, "{build:?}");
        assert_eq!(build[0].count, 4);
        assert_eq!((&build[0].name, &build[0].address, build[0].port), (&None, &None, None));
        assert!(build[0].first_ms > 0 && build[0].first_ms <= build[0].last_ms);
        // Nothing of it is left for the next phase.
        let quiet =
            sandbox.exec(&python(&plan, Phase::Exec, "raise SystemExit(4)"), |_, _| {}).await;
        let quiet = quiet.unwrap();
        assert_eq!(quiet.exit, 4);
        assert!(!quiet.cause.is_some_and(|cause| cause.contains("route")));
        assert_eq!(unrouted(&sandbox, Phase::Exec), []);
        for _ in 0..2 {
            sandbox.exec(&python(&plan, Phase::Exec, PROGRAM), |_, _| {}).await.unwrap();
        }
        assert_eq!(unrouted(&sandbox, Phase::Exec)[0].count, 8);
        assert_eq!(unrouted(&sandbox, Phase::Build), build);
        verified(&sandbox.wipe("task-end").await);
    });
}

#[test]
fn a_sandbox_without_any_network_counts_attempts_and_nothing_else() {
    with_bench(|bench| async move {
        let (sandbox, plan) = bench.start(json!({})).await;
        let harmless = python(&plan, Phase::Exec, HARMLESS);
        let mut said = Vec::new();
        let ended =
            sandbox.exec(&harmless, |_, bytes| said.extend_from_slice(bytes)).await.unwrap();
        assert_eq!(ended.exit, 0, "{}", String::from_utf8_lossy(&said));
        assert_eq!(sandbox.violations(), (Vec::new(), 0));
        sandbox.exec(&python(&plan, Phase::Exec, PROGRAM), |_, _| {}).await.unwrap();
        let (list, unlisted) = sandbox.violations();
        assert_eq!(
            (list.len(), list[0].count, list[0].why, unlisted),
            (1, 4, ViolationWhy::NoRoute, 0)
        );
        verified(&sandbox.wipe("task-end").await);
    });
}
