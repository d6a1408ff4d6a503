//! What a sandbox has besides its command: names, services, dependencies of an earlier build.
//!
//! Each of these has a test of its own with more detail (`egress.rs`, `services.rs`, `cache.rs`).

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use cofferdam_contracts::id::TenantId;
use cofferdam_contracts::sandbox::{Phase, ViolationReason};
use cofferdam_sandbox::{
    BaseLookup, Caches, Class, Command, Input, Plan, Promotion, plan, provision, provision_on,
};
use serde_json::{Value, json};

use super::support::plain::plain;
use super::support::{Bench, fresh_id, least, request, run, sh};
use super::{Ground, runtime_of, wiped};

impl Ground {
    /// Another bench of the same class, on which these names have addresses.
    fn beside(&self, hosts: BTreeMap<String, SocketAddr>) -> Bench {
        match &self.bench.remote {
            Some(remote) => Bench::elsewhere(remote.clone(), hosts),
            None => Bench::with_hosts(runtime_of(self.class), hosts),
        }
    }

    fn planned(&self, bench: &Bench, fields: Value) -> Plan {
        let mut whole = fields;
        whole["spec"]["isolation"] = json!({"class_min": least(self.class)});
        plan(&request(self.limited(whole)), &fresh_id(), bench.host.facts()).unwrap()
    }
}

fn in_build(plan: &Plan, script: &str) -> Command {
    let argv = ["/bin/sh", "-c", script].map(str::to_owned).to_vec();
    Command { argv, phase: Phase::Build, ..plan.task.clone() }
}

pub async fn names(ground: Arc<Ground>) {
    let (address, _told) = plain();
    let bench = ground.beside([("b.example".to_owned(), address)].into());
    let fields = json!({"net": ["b.example"]});
    let plan = ground.planned(&bench, fields);
    let sandbox = provision(&bench.host, &plan, &[]).await.unwrap();
    for script in ["curl -sS http://b.example/", "curl -sS --noproxy '*' http://b.example/"] {
        let said = sh(&sandbox, &plan, script).await;
        assert!(said.stdout.contains("b.example"), "{script}: {} {}", said.stdout, said.stderr);
    }
    assert_eq!(sandbox.traffic().violations(), (Vec::new(), 0));
    let said = sh(&sandbox, &plan, "curl -sSf https://x.example/").await;
    assert_ne!(said.outcome.exit, 0);
    assert!(said.outcome.cause.unwrap().contains("x.example"));
    let refused = sandbox.traffic().violations().0;
    assert_eq!(refused.len(), 1, "{refused:?}");
    assert_eq!((refused[0].why, refused[0].phase), (ViolationReason::Name, Phase::Exec));
    wiped(&sandbox.wipe("task-end").await);
    bench.assert_clean();
}

/// A connection and a connected datagram socket to an address that no host has; then an echo request, by the
/// socket that some kernels give to everybody.
const WITHOUT_A_ROUTE: &str = "\
import socket
for kind, protocol in [(socket.SOCK_STREAM, 0), (socket.SOCK_DGRAM, 0), (socket.SOCK_DGRAM, 1)]:
    try:
        tried = socket.socket(socket.AF_INET, kind, protocol)
    except PermissionError:
        print('refused', protocol)
        continue
    try:
        tried.connect(('192.0.2.1', 443))
        print('reached')
    except OSError:
        print('tried', protocol)
raise SystemExit(3)
";

/// Talks to itself, by both versions of IP and sockets of both kinds, and to nobody.
const AT_HOME: &str = "\
import socket
for family, address in [(socket.AF_INET, '127.0.0.1'), (socket.AF_INET6, '::1')]:
    with socket.socket(family) as server:
        server.bind((address, 0))
        server.listen()
        socket.create_connection(server.getsockname()[:2]).close()
    with socket.socket(family, socket.SOCK_DGRAM) as datagrams:
        datagrams.sendto(b'x', (address, 9))
try:
    socket.create_connection(('127.0.0.1', 1))
except ConnectionRefusedError:
    raise SystemExit(4)
";

pub async fn without_a_route(ground: Arc<Ground>) {
    let (sandbox, plan) = ground.start(json!({"build": {"cmd": ["true"]}})).await;
    let python = |phase, program: &str| {
        let argv = ["/usr/bin/python3", "-c", program].map(str::to_owned).to_vec();
        Command { argv, phase, ..plan.task.clone() }
    };
    let quiet = run(&sandbox, &python(Phase::Build, AT_HOME)).await;
    assert_eq!(quiet.outcome.exit, 4, "{}", quiet.stderr);
    assert_eq!(sandbox.traffic().violations(), (Vec::new(), 0));
    let mut echoes = 0;
    for (phase, times) in [(Phase::Build, 1), (Phase::Exec, 2)] {
        for _ in 0..times {
            let said = run(&sandbox, &python(phase, WITHOUT_A_ROUTE)).await;
            assert_eq!(said.outcome.exit, 3, "{}", said.stderr);
            let cause = said.outcome.cause.unwrap();
            let words = format!("the network policy of the {} phase refused", phase.as_str());
            assert!(cause.contains(&words) && cause.contains("no route leads"), "{cause}");
            echoes = u64::from(said.stdout.ends_with("tried 1\n"));
            let refused = said.stdout.ends_with("refused 1\n");
            assert!(said.stdout.starts_with("tried 0\ntried 0\n") && (refused || echoes == 1));
        }
        let (list, unlisted) = sandbox.traffic().violations();
        let of_phase =
            list.iter().filter(|v| v.phase == phase && v.why == ViolationReason::NoRoute);
        assert_eq!(of_phase.map(|v| v.count).sum::<u64>(), times * (2 + echoes), "{list:?}");
        assert_eq!(unlisted, 0);
    }
    let (list, _) = sandbox.traffic().violations();
    assert_eq!(list.iter().map(|v| v.count).sum::<u64>(), 3 * (2 + echoes), "{list:?}");
    assert!(list.iter().all(|v| v.first_ms > 0 && v.first_ms <= v.last_ms));
    // A kernel of the sandbox's own tells where each led; the host's counter does not.
    let own = matches!(ground.class, Class::Gvisor | Class::Microvm);
    let known = own.then_some("192.0.2.1");
    assert!(list.iter().all(|v| v.address.as_deref() == known), "{list:?}");
    assert!(list.iter().all(|v| v.port == known.map(|_| 443)), "{list:?}");
    wiped(&sandbox.wipe("task-end").await);
}

pub async fn switch(ground: Arc<Ground>) {
    let (address, told) = plain();
    let bench = ground.beside([("b.example".to_owned(), address)].into());
    let fields = json!({"build": {"cmd": ["true"], "net": ["b.example"]}});
    let plan = ground.planned(&bench, fields);
    let sandbox = Arc::new(provision(&bench.host, &plan, &[]).await.unwrap());
    let live = tokio::spawn({
        let (sandbox, plan) = (Arc::clone(&sandbox), plan.clone());
        let script = "curl -sS -o /dev/null http://b.example/endless; echo cut $?";
        async move { run(&sandbox, &in_build(&plan, script)).await }
    });
    let told = Arc::new(std::sync::Mutex::new(told));
    let heard = || {
        let told = Arc::clone(&told);
        tokio::task::spawn_blocking(move || {
            told.lock().unwrap().recv_timeout(std::time::Duration::from_secs(20)).unwrap()
        })
    };
    assert!(heard().await.unwrap(), "the flow runs");
    let script = "curl -sS -m 5 --noproxy '*' http://127.0.0.53/ || echo none";
    assert_eq!(sh(&sandbox, &plan, script).await.stdout, "none\n");
    assert!(!heard().await.unwrap(), "the server's end was cut");
    let cut = live.await.unwrap().stdout;
    assert!(cut.contains("cut ") && !cut.contains("cut 0"), "{cut}");
    wiped(&Arc::into_inner(sandbox).unwrap().wipe("task-end").await);
    bench.assert_clean();
}

pub async fn service(ground: Arc<Ground>) {
    // Whoever asks for its health is gone before it answers.
    let listen = "$SIG{PIPE} = \"IGNORE\"; $l = IO::Socket::INET->new(Listen => 5, LocalAddr => \
                  \"127.0.0.1\", LocalPort => 7000) or die; while (1) { $c = $l->accept or next; \
                  print $c \"served\\n\"; close $c }";
    let echo = json!({
        "name": "echo", "port": 7000, "cmd": ["perl", "-MIO::Socket::INET", "-e", listen],
    });
    let fields = json!({
        "limits": {"memMB": 256, "diskMB": 64, "pids": 64}, "spec": {"services": [echo]},
    });
    let plan = ground.planned(&ground.bench, fields);
    let sandbox = provision(&ground.bench.host, &plan, &[]).await.unwrap();
    let ask = "setsid sleep 100 & perl -MIO::Socket::INET -e 'print IO::Socket::INET->new(PeerAddr \
               => \"$ENV{ECHO_HOST}:$ENV{ECHO_PORT}\")->getline'";
    for _ in 0..2 {
        let said = sh(&sandbox, &plan, ask).await;
        assert_eq!(said.stdout, "served\n", "{:?} {}", said.outcome, said.stderr);
    }
    assert_eq!(sandbox.services()[0].report.exit, None, "the sweep after a command spares it");
    wiped(&sandbox.wipe("task-end").await);
}

pub async fn cache(ground: Arc<Ground>) {
    let bench = &ground.bench;
    let fields = || {
        json!({
            "build": {"cmd": ["/bin/sh", "-c", "mkdir /deps/lib && echo one > /deps/lib/a"]},
            "spec": {"cache": {"repo": ground.class.as_str(), "paths": ["lock"]}},
        })
    };
    let plan = ground.planned(bench, fields());
    let inputs = [Input::Bytes { path: "/work/lock".into(), bytes: b"1".to_vec(), mode: 0o644 }];
    let tenant = TenantId::parse("acme").unwrap();
    let wanted = bench.host.base_request(&plan, &inputs, &tenant).await.unwrap().unwrap();
    let caches = Caches::open(bench.state.path()).unwrap();
    let sandbox = provision_on(&bench.host, &plan, &inputs, None).await.unwrap();
    assert_eq!(run(&sandbox, plan.build.as_ref().unwrap()).await.outcome.exit, 0);
    let Promotion::Kept(base) = sandbox.promote(&caches, &wanted).await.unwrap() else {
        panic!("nobody else builds")
    };
    wiped(&sandbox.wipe("task-end").await);
    for _ in 0..2 {
        let plan = ground.planned(bench, fields());
        let BaseLookup::Base(held) = caches.find(base.key(), base.digest()).unwrap() else {
            panic!("it is there")
        };
        let sandbox = provision_on(&bench.host, &plan, &inputs, Some(*held)).await.unwrap();
        let script = "cat /deps/lib/a; echo two > /deps/lib/a; rm /deps/lib/a; touch /deps/b";
        let said = sh(&sandbox, &plan, script).await;
        assert_eq!((said.stdout.as_str(), said.outcome.exit), ("one\n", 0), "{}", said.stderr);
        let evidence = sandbox.wipe("task-end").await;
        wiped(&evidence);
        assert!(evidence.cache_before.is_some() && evidence.cache_before == evidence.cache_after);
    }
}
