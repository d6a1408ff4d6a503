//! What a task may leave in its files, and what is kept of them: refused before the answer, within bounds, with an end.

use std::fs;
use std::time::{Duration, Instant};

use cofferdam_tests::{Home, Server, live_dir};
use nix::sys::signal::{Signal, kill};
use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};
use serde_json::{Value, json};

use super::built::built;
use super::kept::{files, inside, printed, sealed};
use super::kept_plain::sealers;
use super::{Caller, gone};
use crate::support::{count, texts, until};

const SOON: Duration = Duration::from_secs(60);

async fn one(server: &Server) -> (Caller, String) {
    let ann = Caller::of(server, "default").await;
    let (id, _) = ann.create(json!({"templateID": "base", "timeout": 600})).await;
    (ann, id)
}

async fn asked(ann: &Caller, id: &str, door: &str) -> (u16, Value) {
    ann.api("POST", &format!("/sandboxes/{id}/{door}"), None).await
}

#[tokio::test]
async fn a3f1_files_whose_directories_are_links_are_refused_before_they_are_kept() {
    let home = Home::new();
    let server = home.up();
    let (ann, id) = one(&server).await;
    for name in ["tmp", ".cofferdam"] {
        inside(&home, &id, &format!("mv /{name} /.was; ln -s /srv /{name}"));
        for door in ["pause", "snapshots", "fork", "pause"] {
            let (status, refused) = asked(&ann, &id, door).await;
            let why = refused["message"].as_str().unwrap_or_default();
            // 409 means to clients that it is paused already.
            let wanted = if door == "pause" { 400 } else { 409 };
            assert_eq!(status, wanted, "{door} {refused}");
            assert!(why.contains(&format!("/{name} is not a directory")), "{door} {refused}");
            assert!(files(&home).is_empty(), "{door}");
        }
        inside(&home, &id, &format!("rm /{name}; echo no > /{name}"));
        assert_eq!(asked(&ann, &id, "pause").await.0, 400);
        inside(&home, &id, &format!("rm /{name}; mv /.was /{name}"));
    }
    // A template that is built so is none.
    let steps = json!([{"type": "RUN", "args": ["mv /tmp /.was; ln -s /srv /tmp", "root"]}]);
    let (_, end) = built(&ann, "web", steps).await;
    assert_eq!(end["status"], "error", "{end}");
    assert!(
        end["reason"]["message"].as_str().unwrap().contains("/tmp is not a directory"),
        "{end}"
    );
    // What is a directory again is kept.
    assert_eq!(asked(&ann, &id, "pause").await.0, 204);
    assert_eq!(asked(&ann, &id, "resume").await.0, 201);
    assert_eq!(ann.api("DELETE", &format!("/sandboxes/{id}"), None).await.0, 204);
    gone(home, server).await;
}

#[tokio::test]
async fn a_home_that_is_a_link_is_resumed_with_its_files() {
    let home = Home::new();
    let server = home.up();
    let (ann, id) = one(&server).await;
    for (name, place) in [("home", "/srv/home"), ("home/user", "/srv/user")] {
        inside(&home, &id, &format!("cd /; mv /{name} {place}; ln -s {place} /{name}"));
        assert_eq!(asked(&ann, &id, "pause").await.0, 204, "{name}");
        assert_eq!(asked(&ann, &id, "resume").await.0, 201, "{name}");
        let say = format!("cd /home/user && readlink /{name}");
        assert_eq!(inside(&home, &id, &say).trim(), place);
        inside(&home, &id, &format!("cd /; rm /{name}; mv {place} /{name}"));
    }
    assert_eq!(ann.api("DELETE", &format!("/sandboxes/{id}"), None).await.0, 204);
    gone(home, server).await;
}

/// Access lists of 40 KB on forty files: no kernel counts them.
const LISTS: &str = r#"cat > /root/lists.py <<'P'
import os, struct
entries = [(1, 6, 0xffffffff)] + [(2, 4, 1000 + n) for n in range(5000)] + [(4, 4, 0xffffffff), (16, 7, 0xffffffff), (32, 4, 0xffffffff)]
value = struct.pack('<I', 2) + b''.join(struct.pack('<HHI', *entry) for entry in entries)
os.makedirs('/home/user/lists', exist_ok=True)
for n in range(80):
    at = '/home/user/lists/%d' % n
    open(at, 'w').close()
    os.setxattr(at, 'system.posix_acl_access', value)
P
python3 /root/lists.py"#;

#[tokio::test]
async fn a3f7_access_lists_that_a_quota_has_no_room_for_are_found_before_the_answer() {
    let home = Home::new();
    let server = home.up();
    printed(&home, &["config", "set", "quota.blobs_mb", "2"]);
    let (ann, id) = one(&server).await;
    inside(&home, &id, LISTS);
    for _ in 0..2 {
        let (status, refused) = asked(&ann, &id, "pause").await;
        let why = refused["message"].as_str().unwrap_or_default();
        assert!(status != 204 && why.contains("quota.blobs_mb leaves"), "{status} {refused}");
        assert!(files(&home).is_empty());
    }
    // It goes on; and what there is room for is reserved as large as it is.
    assert_eq!(inside(&home, &id, "rm /home/user/lists/? /home/user/lists/[1-6]?; echo on"), "on");
    assert_eq!(asked(&ann, &id, "pause").await.0, 204);
    let sql = server.sql().await;
    sealed(&sql).await;
    let counted = "SELECT bytes FROM app.snapshots WHERE erased_at IS NULL";
    let bytes: i64 =
        texts(&sql, &counted.replace("bytes", "bytes::text")).await[0].parse().unwrap();
    assert!(bytes > 10 * 40_000, "{bytes}");
    sql.close().await;
    assert_eq!(asked(&ann, &id, "resume").await.0, 201);
    let say = "python3 -c \"import os; print(len(os.getxattr('/home/user/lists/70', 'system.posix_acl_access')))\"";
    assert!(inside(&home, &id, say).ends_with("40036"));
    assert_eq!(ann.api("DELETE", &format!("/sandboxes/{id}"), None).await.0, 204);
    gone(home, server).await;
}

#[tokio::test]
async fn a3f7_a_layer_that_no_sealer_can_seal_is_on_record_and_is_resumed() {
    let home = Home::new();
    let server = home.up_with(&[], &[("COFFERDAM_SHORT", "sealer.retry")]);
    let (ann, id) = one(&server).await;
    // A node that no task can make, in its layer: as a fault of this host would leave it.
    inside(&home, &id, "echo kept > /home/user/a");
    // Its mounts are its server's.
    let live = live_dir(home.path()).join("sandboxes");
    let own = format!("/proc/{}/root{}", server.pid(), live.display());
    let layers = fs::read_dir(own).unwrap().flatten();
    let users = layers.map(|one| one.path().join("layer/upper/home/user"));
    let user = users.into_iter().find(|user| user.join("a").exists()).unwrap();
    mknodat(CWD, user.join("node"), FileType::CharacterDevice, Mode::RUSR, makedev(1, 3)).unwrap();
    assert_eq!(asked(&ann, &id, "pause").await.0, 204);
    let sql = server.sql().await;
    let ends = "SELECT count(*) FROM app.audit WHERE op = 'sandbox.unsealable'";
    until("its end is on record", SOON, async || count(&sql, ends).await == 1).await;
    let why = "SELECT reason FROM app.audit WHERE op = 'sandbox.unsealable'";
    assert!(texts(&sql, why).await[0].contains("it is a device"), "{:?}", texts(&sql, why).await);
    assert_eq!(asked(&ann, &id, "resume").await.0, 201);
    assert_eq!(inside(&home, &id, "cat /home/user/a"), "kept");
    assert_eq!(ann.api("DELETE", &format!("/sandboxes/{id}"), None).await.0, 204);
    sql.close().await;
    gone(home, server).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a3f6_a_snapshot_and_a_fork_are_packed_by_a_process_of_their_own() {
    let home = Home::new();
    let server = home.up();
    let (ann, id) = one(&server).await;
    inside(
        &home,
        &id,
        "head -c 100000000 /dev/urandom > /home/user/large; echo kept > /home/user/a",
    );
    for door in ["snapshots", "fork"] {
        let (worker, before) = (server.pid(), files(&home).len());
        // Whoever reads the files is not the worker: when it ends, nothing is kept, and the sandbox goes on.
        let ending = std::thread::spawn(move || {
            let since = Instant::now();
            while since.elapsed() < SOON {
                if let [sealer] = sealers(worker)[..] {
                    kill(sealer, Signal::SIGKILL).unwrap();
                    return;
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            panic!("no sealer");
        });
        let (status, refused) = asked(&ann, &id, door).await;
        ending.join().unwrap();
        assert_eq!(status, 503, "{door} {refused}");
        assert_eq!(files(&home).len(), before, "{door}");
        assert_eq!(inside(&home, &id, "cat /home/user/a"), "kept");
        let (status, made) = asked(&ann, &id, door).await;
        assert_eq!(status, 201, "{door} {made}");
    }
    for live in ann.api("GET", "/v2/sandboxes", None).await.1.as_array().unwrap() {
        ann.kill(live["sandboxID"].as_str().unwrap()).await;
    }
    gone(home, server).await;
}
