//! A task that floods the way out and does not read, and the memory that this costs the worker. The
//! kernel counts memory by process, so the worker is a process of its own, without the other tests.

use crate::support;

use std::fs;

use cofferdam_contracts::sandbox::ViolationReason;
use serde_json::json;
use support::plain::{PROXY, plain};
use support::{in_classes, sh, test_process, verified};

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

/// From here on `VmHWM` is the peak of what follows, and not of the class before.
fn forget_the_peak() {
    fs::write("/proc/self/clear_refs", "5").unwrap();
}

#[test]
fn a_flood_of_connections_and_readers_that_do_not_read_cost_the_worker_little() {
    let said = test_process("flood::worker").output().unwrap();
    let [out, err] = [said.stdout, said.stderr].map(|text| String::from_utf8(text).unwrap());
    assert!(said.status.success(), "{out}{err}");
    assert!(out.contains("test result: ok. 1 passed"), "{out}{err}");
    println!("{out}");
}

#[test]
#[ignore = "the worker of the test above: its memory is that of its process"]
fn worker() {
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
        forget_the_peak();
        let said = sh(&sandbox, &plan, &flood).await;
        assert!(
            said.stdout.contains("plain for"),
            "{:?} {} {}",
            said.outcome,
            said.stdout,
            said.stderr
        );
        let violations = sandbox.traffic().violations().0;
        let refused: u64 =
            violations.iter().filter(|v| v.why == ViolationReason::Flood).map(|v| v.count).sum();
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
