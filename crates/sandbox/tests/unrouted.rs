//! Attempts that never reach the proxy are violations all the same.

use crate::support;

use cofferdam_contracts::sandbox::{Phase, Violation, ViolationReason};
use cofferdam_sandbox::{Class, Command, Plan, Sandbox};
use serde_json::json;
use support::{in_classes, verified};

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

/// Attempts at one address and ever another port.
const FLOOD: &str = "\
import socket
for port in range(1, 2001):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as tried:
        tried.connect_ex(('192.0.2.1', port))
";

/// The addresses that a class tells of `PROGRAM`: the host's kernel keeps none.
fn addresses(class: Class) -> &'static [Option<&'static str>] {
    match class {
        Class::Container | Class::Docker => &[None],
        Class::Gvisor | Class::Microvm => &[Some("192.0.2.1"), Some("2001:db8::1")],
        Class::Remote => &[],
    }
}

fn total(list: &[Violation]) -> u64 {
    list.iter().map(|violation| violation.count).sum()
}

fn unrouted(sandbox: &Sandbox, phase: Phase) -> Vec<Violation> {
    let (all, _) = sandbox.traffic().violations();
    all.into_iter().filter(|v| v.why == ViolationReason::NoRoute && v.phase == phase).collect()
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
    in_classes(&[], |bench| async move {
        let fields = json!({
            "net": ["a.example"], "build": {"cmd": ["true"], "net": ["a.example"]},
        });
        let (sandbox, plan) = bench.start(fields).await;
        let built = sandbox.exec(&python(&plan, Phase::Build, PROGRAM), |_, _| {}).await.unwrap();
        assert_eq!(built.exit, 3, "{built:?}");
        let cause = built.cause.unwrap();
        let expected = addresses(bench.class);
        let first =
            expected[0].map_or("a connection".to_owned(), |address| format!("{address}:443"));
        assert!(cause.contains("the build phase refused "), "{cause}");
        assert!(cause.contains(&format!("{first} (no route leads")), "{cause}");
        let build = unrouted(&sandbox, Phase::Build);
        let mut found: Vec<_> = build.iter().map(|v| v.address.as_deref()).collect();
        found.sort_unstable();
        assert_eq!((found.as_slice(), total(&build)), (expected, 4), "{build:?}");
        for violation in &build {
            assert_eq!(violation.name, None);
            assert_eq!(violation.port, violation.address.as_ref().map(|_| 443));
            assert!(violation.first_ms > 0 && violation.first_ms <= violation.last_ms);
        }
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
        assert_eq!(total(&unrouted(&sandbox, Phase::Exec)), 8);
        assert_eq!(unrouted(&sandbox, Phase::Build), build);
        verified(&sandbox.wipe("task-end").await);
    });
}

#[test]
fn a_sandbox_without_any_network_counts_attempts_and_nothing_else() {
    in_classes(&[], |bench| async move {
        let (sandbox, plan) = bench.start(json!({})).await;
        let harmless = python(&plan, Phase::Exec, HARMLESS);
        let mut said = Vec::new();
        let ended =
            sandbox.exec(&harmless, |_, bytes| said.extend_from_slice(bytes)).await.unwrap();
        assert_eq!(ended.exit, 0, "{}", String::from_utf8_lossy(&said));
        assert_eq!(sandbox.traffic().violations(), (Vec::new(), 0));
        sandbox.exec(&python(&plan, Phase::Exec, PROGRAM), |_, _| {}).await.unwrap();
        let (list, unlisted) = sandbox.traffic().violations();
        assert_eq!((list.len(), total(&list), unlisted), (addresses(bench.class).len(), 4, 0));
        assert!(list.iter().all(|violation| violation.why == ViolationReason::NoRoute));
        verified(&sandbox.wipe("task-end").await);
    });
}

#[test]
fn a_flood_of_attempts_is_counted_to_the_last_and_listed_in_part() {
    in_classes(&[], |bench| async move {
        let (sandbox, plan) = bench.start(json!({})).await;
        let last = "import socket; socket.socket().connect_ex(('192.0.2.1', 443))";
        // What gVisor told in vain it says with what it tells next.
        for program in [FLOOD, last] {
            let ended =
                sandbox.exec(&python(&plan, Phase::Exec, program), |_, _| {}).await.unwrap();
            assert_eq!(ended.exit, 0, "{ended:?}");
        }
        let (list, unlisted) = sandbox.traffic().violations();
        assert!(list.len() <= 200, "{}", list.len());
        assert_eq!(total(&list) + unlisted, 2001);
        verified(&sandbox.wipe("task-end").await);
    });
}

/// A service that tries at its start what the task's own commands do not.
#[test]
fn what_a_service_tried_while_it_started_is_laid_at_no_commands_door() {
    in_classes(&[], |bench| async move {
        let listen = "import socket\nsocket.socket().connect_ex(('192.0.2.1', 443))\n\
                      server = socket.socket()\nserver.bind(('127.0.0.1', 7000))\nserver.listen()\n\
                      while True:\n    server.accept()[0].close()\n";
        let echo = json!({"name": "echo", "port": 7000, "cmd": ["python3", "-c", listen]});
        let fields = json!({
            "limits": {"memMB": 256, "diskMB": 64, "pids": 64}, "spec": {"services": [echo]},
        });
        let (sandbox, plan) = bench.start(fields).await;
        let quiet =
            sandbox.exec(&python(&plan, Phase::Exec, "raise SystemExit(4)"), |_, _| {}).await;
        assert_eq!(quiet.unwrap().exit, 4);
        assert_eq!(sandbox.traffic().violations(), (Vec::new(), 0));
        verified(&sandbox.wipe("task-end").await);
    });
}
