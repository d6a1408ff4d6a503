//! Tasks that mean harm to the way out: nonsense, a sudden end.

use crate::support;

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use cofferdam_contracts::sandbox::ViolationReason;
use cofferdam_sandbox::SandboxError;
use serde_json::json;
use support::plain::plain;
use support::{in_classes, sh, verified};

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
            (say(3128, "SSH-2.0-x\\r\\n\\r\\n"), ViolationReason::Malformed),
            // The preface of the agent's own protocol.
            (say(3128, "PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n"), ViolationReason::Malformed),
            (say(80, "\\0\\0\\0\\0\\r\\n\\r\\n"), ViolationReason::Malformed),
            (say(443, "GET / HTTP/1.1\\r\\n\\r\\n"), ViolationReason::NotTls),
            (say(53, "\\0\\5hello"), ViolationReason::Malformed),
            (udp.to_owned(), ViolationReason::Malformed),
        ] {
            let count = || -> u64 {
                let all = sandbox.traffic().violations().0;
                all.iter().filter(|v| v.why == why).map(|v| v.count).sum()
            };
            let before = count();
            assert_eq!(sh(&sandbox, &plan, &script).await.outcome.exit, 7, "{script}");
            // HTTP's library closes such a connection, and tells us of it behind that.
            let since = Instant::now();
            while count() == before && since.elapsed() < Duration::from_secs(10) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            assert!(count() > before, "{script}: {:?}", sandbox.traffic().violations());
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
