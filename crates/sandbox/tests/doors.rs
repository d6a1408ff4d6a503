//! Tasks that mean harm to the way out: floods, readers that do not read, nonsense, a sudden end.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a helper of tests fails its test"
)]

mod support;

use std::fs;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cofferdam_contracts::sandbox::ViolationWhy;
use cofferdam_sandbox::SandboxError;
use serde_json::json;
use support::plain::{PROXY, plain};
use support::{in_classes, sh, verified};

/// What the worker may cost more while a task does its worst: 256 flows with their windows and
/// buffers both ways, some 200 KiB each.
const MOST_MB: u64 = 96;

/// A field of this process, the worker, in MiB.
fn memory_mb(field: &str) -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(field)).unwrap();
    let kb: u64 = line.trim_start_matches(':').trim().split(' ').next().unwrap().parse().unwrap();
    kb / 1024
}

/// Both in one test, because the memory that they look at is one process's.
#[test]
fn a_flood_of_connections_and_readers_that_do_not_read_cost_the_worker_little() {
    let (address, _told) = plain();
    let flood = format!(
        "perl -MIO::Socket::INET -e 'for (1..10000) {{ my $s = IO::Socket::INET->new(PeerAddr => \
         \"{PROXY}\") or next; $made++; push @open, $s; close shift @open if @open > 600 }} \
         print \"made $made\\n\"'; for i in 1 2 3 4 5; do curl -sS -m 5 http://b.example/ && break; \
         sleep 1; done"
    );
    // Forty answers without end that nobody reads, forty bodies without end that the server does
    // not read; meanwhile a client that behaves, and more output than one window.
    let stalled = format!(
        "perl -MIO::Socket::INET -e 'for my $n (1..80) {{ my $s = IO::Socket::INET->new(PeerAddr => \
         \"{PROXY}\") or exit 8; push @held, $s; $s->autoflush(1); my ($way, $more) = $n % 2 ? \
         (\"GET\", \"\") : (\"POST\", \"Content-Length: 1000000000\\r\\n\"); print $s \
         \"$way http://b.example/endless HTTP/1.1\\r\\nHost: b.example\\r\\n$more\\r\\n\"; \
         next if $n % 2; $s->blocking(0); for (1..100) {{ syswrite($s, \"x\" x 65536) or last }} }} \
         sleep 2; system(\"yes | head -c 3000000; curl -sS -m 20 http://b.example/\")'"
    );
    in_classes(&[("b.example", address)], |bench| async {
        let bench = bench;
        let fields = json!({
            "net": ["b.example"], "timeoutMs": 120_000,
            "limits": {"memMB": 512, "diskMB": 64, "pids": 128},
        });
        let (sandbox, plan) = bench.start(fields).await;
        let before = memory_mb("VmRSS");
        let said = sh(&sandbox, &plan, &flood).await;
        assert!(
            said.stdout.contains("plain for"),
            "{:?} {} {}",
            said.outcome,
            said.stdout,
            said.stderr
        );
        let violations = sandbox.violations().0;
        let refused: u64 =
            violations.iter().filter(|v| v.why == ViolationWhy::Flood).map(|v| v.count).sum();
        println!("{:?}: {} refused {refused}", bench.class, said.stdout.lines().next().unwrap());
        assert!(refused > 1_000, "{violations:?}");
        let said = sh(&sandbox, &plan, &stalled).await;
        let length = said.stdout.len();
        assert!(length > 3_000_000, "{length} {:?} {}", said.outcome, said.stderr);
        assert!(said.stdout.ends_with("b.example\n"), "{:?} {}", said.outcome, said.stderr);
        let most = memory_mb("VmHWM");
        println!("{:?}: {before} MiB before, {most} at most", bench.class);
        assert!(most.saturating_sub(before) < MOST_MB, "{before} {most}");
        verified(&sandbox.wipe("task-end").await);
    });
}

#[test]
fn nonsense_is_a_violation_and_ends_nothing_but_its_connection() {
    let (address, _told) = plain();
    in_classes(&[("b.example", address)], |bench| async move {
        let (sandbox, plan) = bench.start(json!({"net": ["b.example"]})).await;
        let say = |port: u16, words: &str| {
            format!(
                "perl -MIO::Socket::INET -e 'my $s = IO::Socket::INET->new(PeerAddr => \
                 \"127.0.0.53:{port}\") or exit 8; $s->autoflush(1); print $s \"{words}\"; local $/; \
                 <$s>; exit 7'"
            )
        };
        let udp = "perl -MIO::Socket::INET -e 'my $s = IO::Socket::INET->new(PeerAddr => \
                   \"127.0.0.53:53\", Proto => \"udp\") or exit 8; $s->send(\"x\" x 5000); \
                   $s->send(\"\"); $s->send(\"short\"); sleep 1; exit 7'";
        for (script, why) in [
            (say(3128, "SSH-2.0-x\\r\\n\\r\\n"), ViolationWhy::Malformed),
            // The preface of the agent's own protocol.
            (say(3128, "PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n"), ViolationWhy::Malformed),
            (say(80, "\\0\\0\\0\\0\\r\\n\\r\\n"), ViolationWhy::Malformed),
            (say(443, "GET / HTTP/1.1\\r\\n\\r\\n"), ViolationWhy::NotTls),
            (say(53, "\\0\\5hello"), ViolationWhy::Malformed),
            (udp.to_owned(), ViolationWhy::Malformed),
        ] {
            let count = || -> u64 {
                let all = sandbox.violations().0;
                all.iter().filter(|v| v.why == why).map(|v| v.count).sum()
            };
            let before = count();
            assert_eq!(sh(&sandbox, &plan, &script).await.outcome.exit, 7, "{script}");
            assert!(count() > before, "{script}: {:?}", sandbox.violations());
        }
        let said =
            sh(&sandbox, &plan, "curl -sS http://b.example/ && getent hosts b.example").await;
        assert!(said.stdout.contains("127.0.0.53"), "{} {}", said.stdout, said.stderr);
        verified(&sandbox.wipe("task-end").await);
    });
}

#[test]
fn a_sandbox_that_is_killed_takes_its_connections_along() {
    let (address, told) = plain();
    let told = Arc::new(Mutex::new(told));
    in_classes(&[("b.example", address)], |bench| async {
        let bench = bench;
        let (sandbox, plan) = bench.start(json!({"net": ["b.example"]})).await;
        let (kill, told) = (sandbox.kill_handle(), Arc::clone(&told));
        let killer = tokio::task::spawn_blocking(move || {
            let told = told.lock().unwrap();
            let wait = || told.recv_timeout(Duration::from_secs(20)).unwrap();
            assert!(wait(), "the flow runs");
            kill.kill();
            assert!(!wait(), "the server's end was cut");
        });
        let command = cofferdam_sandbox::Command {
            argv: ["curl", "-sS", "-o", "/dev/null", "http://b.example/endless"]
                .map(str::to_owned)
                .to_vec(),
            ..plan.task.clone()
        };
        let ended = sandbox.exec(&command, |_, _| {}).await;
        assert!(matches!(ended, Err(SandboxError::Killed)), "{ended:?}");
        killer.await.unwrap();
        verified(&sandbox.wipe("task-end").await);
    });
}
