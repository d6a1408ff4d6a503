//! Each limit that a task may reach has a cause of its own in the outcome.

use std::sync::Arc;

use cofferdam_contracts::limit::LimitKind;
use cofferdam_contracts::sandbox::ErrCode;
use serde_json::json;

use super::support::sh;
use super::{Ground, wiped};

pub async fn memory(ground: Arc<Ground>) {
    let said = ground.sh("perl -e 'my $x = \"a\" x 500_000_000; sleep 5'", json!({})).await;
    assert_eq!(said.outcome.err_code, ErrCode::Oom, "{:?}", said.outcome);
    assert_eq!(said.outcome.reached, [LimitKind::Memory], "{:?}", said.outcome);
}

pub async fn pids(ground: Arc<Ground>) {
    let fields = json!({"limits": {"memMB": 512, "diskMB": 64, "pids": 24}});
    let (sandbox, plan) = ground.start(fields).await;
    // It fails while what it started still runs: that is when an agent can count.
    let crowd = "perl -e 'while (1) { my $p = fork; last unless defined $p; \
                 if (!$p) { sleep 100; exit } } exit 3'";
    let outcome = sh(&sandbox, &plan, crowd).await.outcome;
    assert_eq!((outcome.exit, outcome.err_code), (3, ErrCode::CmdNonzero), "{outcome:?}");
    assert_eq!(outcome.reached, [LimitKind::Pids], "{outcome:?}");
    assert!(outcome.cause.unwrap().contains("processes"));
    // The next command has its own verdict.
    let outcome = sh(&sandbox, &plan, "exit 3").await.outcome;
    assert!(outcome.reached.is_empty(), "{outcome:?}");
    wiped(&sandbox.wipe("task-end").await);
}

pub async fn disk(ground: Arc<Ground>) {
    let fields = json!({"limits": {"memMB": 256, "diskMB": 16, "pids": 64}});
    let (sandbox, plan) = ground.start(fields).await;
    let fill = "head -c 50000000 /dev/zero > /work/big";
    let left = sh(&sandbox, &plan, fill).await.outcome;
    assert_eq!((left.err_code, left.reached), (ErrCode::CmdNonzero, vec![LimitKind::Disk]));
    assert!(left.cause.unwrap().contains("writable layer of 16 MiB was full"));
    // What clears it again before anybody looks has only its own words, and they are told as such.
    let cleared = sh(&sandbox, &plan, &format!("{fill}; rm /work/big; exit 4")).await.outcome;
    assert_eq!((cleared.exit, cleared.reached), (4, vec![LimitKind::Disk]));
    // A task that survives a full layer is no failure, and still says so.
    let survived = sh(&sandbox, &plan, &format!("{fill} 2>&1; sleep 0.2; true")).await.outcome;
    assert_eq!((survived.err_code, survived.reached), (ErrCode::None, vec![LimitKind::Disk]));
    let after = sh(&sandbox, &plan, "rm /work/big; exit 5").await.outcome;
    assert_eq!(after.exit, 5);
    let after = sh(&sandbox, &plan, "exit 5").await.outcome;
    assert!(after.reached.is_empty(), "{after:?}");
    wiped(&sandbox.wipe("task-end").await);
}

pub async fn nofile(ground: Arc<Ground>) {
    let fields = json!({"limits": {"memMB": 128, "diskMB": 64, "pids": 64, "nofile": 80}});
    let (sandbox, plan) = ground.start(fields).await;
    assert_eq!(sandbox.effective().limits.nofile, Some(80));
    assert_eq!(sh(&sandbox, &plan, "ulimit -Sn; ulimit -Hn").await.stdout, "80\n80\n");
    // Root may not raise it: it lacks the capability.
    assert_ne!(sh(&sandbox, &plan, "ulimit -Hn 4096").await.outcome.exit, 0);
    let hoard = "perl -e 'my @f; while (open my $f, \"<\", \"/dev/null\") { push @f, $f } \
                 print scalar @f; die \"$!\\n\"'";
    let said = sh(&sandbox, &plan, hoard).await;
    let opened: u32 = said.stdout.parse().unwrap();
    assert!((70..80).contains(&opened), "{opened}");
    assert_eq!(said.stderr, "Too many open files\n");
    assert_eq!(said.outcome.err_code, ErrCode::CmdNonzero);
    assert_eq!(said.outcome.reached, [LimitKind::Nofile], "{:?}", said.outcome);
    assert!(said.outcome.cause.unwrap().contains("its output says"), "a hint is told as one");
    // Each process has its own, so the agent and the next command are as they were.
    assert_eq!(sh(&sandbox, &plan, "echo alive").await.stdout, "alive\n");
    wiped(&sandbox.wipe("task-end").await);
}

pub async fn output(ground: Arc<Ground>) {
    let fields = json!({"limits": {"memMB": 128, "diskMB": 64, "pids": 64, "outputBytes": 1_000}});
    let (sandbox, plan) = ground.start(fields).await;
    assert_eq!(sandbox.effective().limits.output_bytes, Some(1_000));
    let said = sh(&sandbox, &plan, "head -c 5000 /dev/zero; head -c 1000 /dev/zero >&2").await;
    assert_eq!((said.stdout.len(), said.stderr.len()), (1_000, 1_000));
    let outcome = said.outcome;
    assert_eq!((outcome.dropped.stdout, outcome.dropped.stderr), (4_000, 0));
    assert_eq!((outcome.err_code, outcome.reached), (ErrCode::None, vec![LimitKind::Output]));
    assert!(outcome.cause.unwrap().contains("4000 bytes of stdout"));
    // The limit is a command's, not the sandbox's.
    let said = sh(&sandbox, &plan, "head -c 1000 /dev/zero").await;
    assert_eq!((said.stdout.len(), said.outcome.reached.len()), (1_000, 0));
    wiped(&sandbox.wipe("task-end").await);
}

pub async fn wall(ground: Arc<Ground>) {
    let (sandbox, plan) = ground.start(json!({"timeoutMs": 700})).await;
    let outcome = sh(&sandbox, &plan, "sleep 1000").await.outcome;
    assert_eq!((outcome.err_code, outcome.reached), (ErrCode::Timeout, vec![LimitKind::Wall]));
    let outcome = sh(&sandbox, &plan, "exit 3").await.outcome;
    assert_eq!((outcome.exit, outcome.reached.len()), (3, 0));
    wiped(&sandbox.wipe("task-end").await);
}
