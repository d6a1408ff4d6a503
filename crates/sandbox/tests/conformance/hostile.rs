//! Tasks that mean harm to whoever reads what they left, or waits for what they promise.
//!
//! The rest of the list stands in the other behaviours: fork bomb, memory bomb, disk filler,
//! output flood, `..` and links in artifact paths, processes that ignore TERM, a killed agent.

use std::sync::Arc;

use cofferdam_contracts::sandbox::ErrCode;
use cofferdam_sandbox::{Class, plan, provision};
use serde_json::{Value, json};

use super::support::{fresh_id, in_words, request, sh, verified};
use super::{Ground, wiped};

/// An archive is bytes like any other: nobody here unpacks it. A sparse file is as large as it says.
pub async fn zip_bomb(ground: Arc<Ground>) {
    let (sandbox, plan) = ground.start(json!({"timeoutMs": 60_000})).await;
    let pack = "head -c 100000000 /dev/zero | gzip -9 > bomb.gz && \
                head -c 1000000 bomb.gz | gzip -9 > twice.gz && truncate -s 1T sparse";
    let said = sh(&sandbox, &plan, pack).await;
    assert_eq!(said.outcome.exit, 0, "{}", said.stderr);
    let files = sandbox.files().collect("/work", &["*.gz".to_owned()]).await.unwrap();
    let sizes: Vec<(&str, bool)> =
        files.iter().map(|file| (file.path.as_str(), file.bytes.len() < 200_000)).collect();
    assert_eq!(sizes, [("bomb.gz", true), ("twice.gz", true)]);
    assert_eq!(files[0].bytes[..2], [0x1f, 0x8b], "the bytes are the task's own");
    // Refused by what it claims, before anything of it is read.
    let refused = sandbox.files().collect("/work", &["sparse".to_owned()]).await;
    assert!(refused.is_err());
    assert_eq!(sh(&sandbox, &plan, "echo alive").await.stdout, "alive\n");
    wiped(&sandbox.wipe("task-end").await);
}

pub async fn hundred_thousand_files(ground: Arc<Ground>) {
    // An inode costs about a KiB of the sandbox's own memory.
    let fields = json!({
        "timeoutMs": 300_000, "limits": {"memMB": 1_024, "diskMB": 64, "pids": 64},
    });
    let (sandbox, plan) = ground.start(fields).await;
    let make = "mkdir many && perl -e 'for my $d (1 .. 100) { mkdir \"many/$d\" or die $!; \
                for my $n (1 .. 1_000) { open my $f, \">\", \"many/$d/$n\" or die $!; $all++ } } \
                print $all, \"\\n\"'";
    let said = sh(&sandbox, &plan, make).await;
    assert_eq!(said.stdout, "100000\n", "{:?} {}", said.outcome, said.stderr);
    let error = sandbox.files().collect("/work", &["many/**".to_owned()]).await.unwrap_err();
    let words = in_words(&error);
    assert!(words.contains("1000") || words.contains("1,000"), "{words}");
    // One of them can be had: it is the number that is refused, not the place.
    let one = sandbox.files().collect("/work", &["many/77/777".to_owned()]).await.unwrap();
    assert_eq!((one.len(), one[0].path.as_str()), (1, "many/77/777"));
    let evidence = sandbox.wipe("task-end").await;
    wiped(&evidence);
    if matches!(ground.class, Class::Container | Class::Docker) {
        assert!(evidence.upper_inodes > 100_000, "{}", evidence.upper_inodes);
    }
}

/// A process that outlives no command cannot swap anything between two of them, so it is a service of
/// the task's own making: the path is swapped while it is read, again and again.
pub async fn swapped_link(ground: Arc<Ground>) {
    let (sandbox, plan) = ground.start(json!({"timeoutMs": 20_000})).await;
    let ready = sh(&sandbox, &plan, "mkdir -p logs/d; echo own > logs/d/passwd").await;
    assert_eq!(ready.outcome.exit, 0);
    let sandbox = Arc::new(sandbox);
    let swap = "perl -e '$e = time + 3; while (time < $e) { \
                rename \"logs/d\", \"logs/t\"; symlink \"/etc\", \"logs/d\"; \
                unlink \"logs/d\"; rename \"logs/t\", \"logs/d\" }'";
    let beside = Arc::clone(&sandbox);
    let task = plan.clone();
    let swapping = tokio::spawn(async move { sh(&beside, &task, swap).await.outcome });
    let mut read = 0;
    while !swapping.is_finished() {
        // Gone at that moment is an answer too; what is behind the link never is.
        if let Ok(files) = sandbox.files().collect("/work", &["logs/**".to_owned()]).await {
            for file in files {
                assert_eq!(file.bytes, b"own\n", "{}", file.path);
                read += 1;
            }
        }
    }
    assert_eq!(swapping.await.unwrap().exit, 0);
    assert!(read > 0, "the file itself was read at times");
    let sandbox = Arc::into_inner(sandbox).unwrap();
    wiped(&sandbox.wipe("task-end").await);
}

/// Something listens, answers rubbish, and says that it is well.
pub async fn fake_health(ground: Arc<Ground>) {
    let liar = |probe: &str| -> Value {
        json!({
            "name": "liar", "port": 7000, "health": {"probe": probe, "timeout_ms": 700},
            "cmd": ["perl", "-MIO::Socket::INET", "-e",
                    "$l = IO::Socket::INET->new(Listen => 5, LocalPort => 7000) or die; \
                     while ($c = $l->accept) { print $c \"healthy, I swear\\r\\n\"; close $c }"],
        })
    };
    for probe in ["postgres", "redis", "http"] {
        let mut fields = ground.fields(json!({}));
        fields["spec"]["services"] = json!([liar(probe)]);
        let planned = plan(&request(fields), &fresh_id(), ground.bench.host.facts()).unwrap();
        let error = provision(&ground.bench.host, &planned, &[]).await.unwrap_err();
        assert_eq!(error.code, ErrCode::BootFail, "{error}");
        verified(&error.evidence);
        assert!(error.message.contains("not healthy within 700 ms"), "{probe}: {error}");
    }
}
