//! Pause, resume, snapshot and fork, by the commands and by hand.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use cofferdam_tests::{Home, Server, text};
use serde_json::{Value, json};
use sqlx::PgPool;

use super::{Caller, answered, gone};
use crate::support::has_class;
use crate::support::{count, said, texts, until};

const SOON: Duration = Duration::from_secs(30);

pub(super) fn printed(home: &Home, args: &[&str]) -> String {
    let done = home.run(args);
    assert!(done.status.success(), "{args:?}: {}", said(&done));
    String::from_utf8(done.stdout).unwrap().trim().to_owned()
}

pub(super) fn inside(home: &Home, id: &str, script: &str) -> String {
    printed(home, &["sandbox", "exec", id, "--user", "root", "--", "sh", "-c", script])
}

/// The host's operator says for how many seconds sealed layers rest.
pub(super) fn rest(home: &Home, seconds: &str) {
    printed(home, &["config", "set", "pause.rest_s", seconds, "--global"]);
}

/// Until what pauses kept is sealed.
pub(super) async fn sealed(sql: &PgPool) {
    let left = "SELECT count(*) FROM app.snapshots WHERE sealed_at IS NULL AND erased_at IS NULL";
    until("what is kept is sealed", SOON, async || count(sql, left).await == 0).await;
}

/// Until no file of a snapshot is left: what nobody needs is erased beside the answers.
pub(super) async fn erased(home: &Home) {
    until("the files of what is over are erased", SOON, async || files(home).is_empty()).await;
}

pub(super) fn files(home: &Home) -> Vec<PathBuf> {
    let dir = fs::read_dir(home.path().join("snapshots"));
    dir.map(|all| all.map(|one| one.unwrap().path()).collect()).unwrap_or_default()
}

#[tokio::test]
async fn a_sandbox_is_paused_resumed_forked_and_kept_by_commands() {
    let home = Home::new();
    let server = home.up();
    by_commands(&home, &server, "container").await;
    gone(home, server).await;
}

#[tokio::test]
async fn a_sandbox_of_an_engine_is_paused_resumed_forked_and_kept_by_commands() {
    if !has_class("docker") {
        return;
    }
    let home = Home::new();
    let server = home.up_with(&["--runtime", "docker"], &[]);
    by_commands(&home, &server, "container").await;
    let sql = server.sql().await;
    let runtimes = "SELECT DISTINCT runtime FROM app.remote_execution_sessions";
    assert_eq!(texts(&sql, runtimes).await, ["docker"]);
    sql.close().await;
    gone(home, server).await;
}

pub(super) async fn by_commands(home: &Home, server: &Server, class: &str) {
    let create =
        ["sandbox", "create", "--class", class, "--timeout", "300", "--env", "A=kept secret"];
    let id = printed(home, &create);
    inside(
        home,
        &id,
        "cd /home/user; echo one > a; mkdir d; mkfifo d/p; ln a d/same; chmod 4711 a",
    );
    inside(
        home,
        &id,
        "truncate -s 4G /home/user/holes; rm -rf /etc/skel; mkdir /etc/skel; setsid sleep 70 >/dev/null 2>&1 &",
    );
    assert_eq!(printed(home, &["sandbox", "pause", &id, "--files-only"]), "paused");
    // No process, no mount and no word of it is left but the sealed file.
    let sql = server.sql().await;
    sealed(&sql).await;
    let kept = files(home);
    assert_eq!(kept.len(), 1);
    let bytes = fs::read(&kept[0]).unwrap();
    assert!(!bytes.windows(11).any(|part| part == b"kept secret"), "its environment is sealed");
    assert!(bytes.len() < 1 << 20, "holes are not kept: {}", bytes.len());
    let listed = printed(home, &["sandbox", "ls", "--json"]);
    let listed: Value = serde_json::from_str(&listed).unwrap();
    assert_eq!(listed["sandboxes"][0]["state"], "paused");
    for (args, words) in [
        (vec!["sandbox", "pause", &id], "paused"),
        (vec!["sandbox", "exec", &id, "--", "true"], "resume it first"),
        (vec!["sandbox", "extend", &id, "60"], "resume it first"),
        (vec!["sandbox", "resume", "00000000000000000000"], "not found"),
        (vec!["sandbox", "snapshot", "create", &id], "resume it first"),
        (vec!["sandbox", "fork", &id, "--count", "21"], "20"),
        (vec!["sandbox", "fork", &id, "--count", "0"], "1"),
    ] {
        let refused = home.run(&args);
        assert!(!refused.status.success() && said(&refused).contains(words), "{}", said(&refused));
    }
    let forks = printed(home, &["sandbox", "fork", &id, "--count", "2", "--timeout", "60"]);
    let forks: Vec<&str> = forks.lines().collect();
    assert_eq!(forks.len(), 2);
    let look = "cd /home/user; cat a; stat -c '%a %h' a; test -p d/p; stat -c '%s' holes; ls -A /etc/skel; echo $A; pgrep -x sleep";
    let seen = format!("{look} || echo none");
    let want = "one\n4711 2\n4294967296\nkept secret\nnone";
    for fork in &forks {
        assert_eq!(inside(home, fork, &seen), want);
    }
    assert_eq!(printed(home, &["sandbox", "resume", &id, "--timeout", "60"]), "running");
    assert_eq!(inside(home, &id, &seen), want);
    let refused = home.run(&["sandbox", "resume", &id]);
    assert!(said(&refused).contains("not paused"), "{}", said(&refused));
    // Once it runs, what it was paused into is erased.
    erased(home).await;
    // Kept while it goes on.
    let snapshot = printed(home, &["sandbox", "snapshot", "create", &id, "--name", "first"]);
    inside(home, &id, "echo two > /home/user/a");
    assert!(printed(home, &["sandbox", "snapshot", "ls"]).contains("first"));
    assert_eq!(printed(home, &["sandbox", "rm", &id]), "killed");
    let made = printed(home, &["sandbox", "create", "--from", &snapshot, "--timeout", "60"]);
    assert_eq!(inside(home, &made, "cat /home/user/a"), "one");
    assert_eq!(printed(home, &["sandbox", "snapshot", "rm", &snapshot]), "deleted");
    assert_eq!(files(home), Vec::<PathBuf>::new());
    let refused = home.run(&["sandbox", "create", "--from", &snapshot]);
    assert!(said(&refused).contains("not found"), "{}", said(&refused));
    // One that is paused is killed: its files are erased, which is on record.
    printed(home, &["sandbox", "pause", &made]);
    assert_eq!(printed(home, &["sandbox", "rm", &made]), "killed");
    for fork in forks {
        printed(home, &["sandbox", "rm", fork]);
    }
    let left = "SELECT count(*) FROM app.snapshots WHERE sealed_key IS NOT NULL OR erased_at IS NULL OR gone_at IS NULL";
    assert_eq!(count(&sql, left).await, 0);
    assert_eq!(count(&sql, "SELECT count(*) FROM app.snapshots").await, 3);
    let ops = texts(&sql, "SELECT DISTINCT op FROM app.audit WHERE op LIKE 'sandbox.%' OR op LIKE 'snapshot.%' ORDER BY op").await;
    let all =
        ["sandbox.kill", "sandbox.pause", "sandbox.resume", "sandbox.snapshot", "snapshot.delete"];
    assert_eq!(ops, all);
    sql.close().await;
    assert_eq!(files(home), Vec::<PathBuf>::new());
}

#[tokio::test]
async fn another_tenant_sees_nothing_of_what_is_kept() {
    let home = Home::new();
    let server = home.up();
    let (ann, bob) = (Caller::of(&server, "ann").await, Caller::of(&server, "bob").await);
    let (id, _) = ann.create(json!({"templateID": "base", "timeout": 60})).await;
    let (status, kept) = ann.api("POST", &format!("/sandboxes/{id}/snapshots"), None).await;
    assert_eq!(status, 201, "{kept}");
    let snapshot = text(&kept, "snapshotID");
    let hidden = async || {
        for (method, path) in [
            ("POST", format!("/sandboxes/{id}/pause")),
            ("POST", format!("/sandboxes/{id}/resume")),
            ("POST", format!("/v2/sandboxes/{id}/connect")),
            ("POST", format!("/sandboxes/{id}/snapshots")),
            ("POST", format!("/sandboxes/{id}/fork")),
            ("GET", format!("/sandboxes/{id}/logs")),
            ("GET", format!("/v2/sandboxes/{id}/logs")),
            ("DELETE", format!("/sandboxes/{id}")),
            ("DELETE", format!("/templates/{snapshot}")),
        ] {
            let (status, answer) = bob.api(method, &path, None).await;
            assert_eq!((status, &answer["code"]), (404, &json!(404)), "{method} {path} {answer}");
        }
        let from = json!({"templateID": snapshot, "timeout": 60});
        assert_eq!(bob.api("POST", "/v2/sandboxes", Some(from)).await.0, 404);
        assert_eq!(bob.api("GET", "/snapshots", None).await.1, json!([]));
        assert_eq!(bob.api("GET", "/v2/sandboxes?state=paused", None).await.1, json!([]));
    };
    hidden().await;
    let path = format!("/sandboxes/{id}/pause");
    let (one, two) = tokio::join!(
        ann.api("POST", &path, None),
        ann.api("POST", &path, Some(json!({"memory": false}))),
    );
    let mut both = [one.0, two.0];
    both.sort_unstable();
    assert!(both == [204, 409] || both == [204, 404], "of two pauses at once one is: {both:?}");
    hidden().await;
    assert_eq!(ann.api("POST", &format!("/sandboxes/{id}/pause"), None).await.0, 409);
    let path = format!("/sandboxes/{id}/resume");
    let (one, two) = tokio::join!(
        ann.api("POST", &path, Some(json!({"timeout": 60}))),
        ann.api("POST", &path, Some(json!({"timeout": 60}))),
    );
    let mut both = [one.0, two.0];
    both.sort_unstable();
    assert!(both == [201, 409] || both == [201, 503], "{} {}", one.1, two.1);
    assert_eq!(ann.api("DELETE", &format!("/sandboxes/{id}"), None).await.0, 204);
    assert_eq!(ann.api("DELETE", &format!("/templates/{snapshot}"), None).await.0, 204);
    gone(home, server).await;
}

#[tokio::test]
async fn a_damaged_file_is_refused_and_the_sandbox_stays_paused() {
    damaged("container").await;
}

pub(super) async fn damaged(class: &'static str) {
    let home = Home::new();
    let server = home.up();
    rest(&home, "0");
    let ann = Caller::of(&server, "ann").await.in_class(class);
    let (id, _) = ann.create(json!({"templateID": "base", "timeout": 60})).await;
    let path = format!("/sandboxes/{id}");
    assert_eq!(ann.api("POST", &format!("{path}/pause"), None).await.0, 204);
    let sql = server.sql().await;
    sealed(&sql).await;
    sql.close().await;
    let file = files(&home).remove(0);
    let whole = fs::read(&file).unwrap();
    let mut altered = whole.clone();
    let middle = altered.len() / 2;
    altered[middle] ^= 1;
    for bad in [&altered[..], &whole[..whole.len() - 1], b""] {
        fs::write(&file, bad).unwrap();
        let (status, answer) = ann.api("POST", &format!("{path}/connect"), None).await;
        assert_eq!(status, 409, "{answer}");
        assert!(answer["message"].as_str().unwrap().contains("cannot be used"), "{answer}");
        assert_eq!(ann.api("GET", &path, None).await.1["state"], "paused");
    }
    fs::write(&file, &whole).unwrap();
    // Files that lie on the host's programs are not put on an image that bears the template's name meanwhile.
    let template = home.path().join("images/templates/base.json");
    fs::create_dir_all(template.parent().unwrap()).unwrap();
    let image = format!("base@sha256:{}", "0".repeat(64));
    let base = json!({"schemaVersion": 1, "name": "base", "image": image, "user": "user", "createdAtMs": 0});
    fs::write(&template, base.to_string()).unwrap();
    for door in ["connect", "fork"] {
        let (status, answer) = ann.api("POST", &format!("{path}/{door}"), None).await;
        assert_eq!(status, 409, "{door} {answer}");
        assert!(answer["message"].as_str().unwrap().contains("was built anew"), "{answer}");
    }
    fs::remove_file(&template).unwrap();
    let (status, again) = ann.api("POST", &format!("{path}/connect"), None).await;
    assert_eq!((status, text(&again, "sandboxID")), (201, id.clone()));
    assert_eq!(ann.api("DELETE", &path, None).await.0, 204);
    gone(home, server).await;
}

/// A life costs the database rows that stay, whatever becomes of its sandbox.
#[tokio::test]
async fn a3l_lives_rows_count() {
    let home = Home::new();
    let server = home.up();
    let ann = Caller::of(&server, "ann").await;
    let sql = server.sql().await;
    let used =
        "SELECT coalesce(sum(bytes), 0)::bigint FROM app.blob_usage_parts WHERE tenant_id = 'ann'";
    let before = count(&sql, used).await;
    let (id, _) = ann.create(json!({"templateID": "base", "timeout": 60})).await;
    ann.pause(&id).await;
    assert_eq!(ann.resume(&id, json!({"timeout": 60})).await.0, 201);
    assert_eq!(ann.api("DELETE", &format!("/sandboxes/{id}"), None).await.0, 204);
    let erased = "SELECT count(*) FROM app.snapshots WHERE erased_at IS NULL";
    until("nothing of it is kept", SOON, async || count(&sql, erased).await == 0).await;
    let counted = count(&sql, used).await - before;
    assert!((2 * 16_384..2 * 20_000).contains(&counted), "two lives: {counted}");
    sql.close().await;
    gone(home, server).await;
}

#[tokio::test]
async fn a3f5_what_is_kept_at_one_moment_shares_what_the_quota_leaves() {
    let home = Home::new();
    let server = home.up();
    let ann = Caller::of(&server, "ann").await;
    let mut sandboxes = Vec::new();
    for _ in 0..5 {
        let (id, token) = ann.create(json!({"templateID": "base", "timeout": 60})).await;
        let upload = ann.upload((&id, &token), "/home/user/large").body(vec![7_u8; 3 << 20]);
        assert_eq!(answered(upload).await.0, 200);
        sandboxes.push(id);
    }
    let quota = json!({"value": 8, "expectedVersion": 0, "scope": "global"}).to_string();
    let path = "/api/config/quota.blobs_mb";
    let (status, set) =
        server.request("PUT", path, Some(&server.key), Some(quota.into_bytes())).await;
    assert_eq!(status, 200, "{set}");
    let keep = |id: &String| {
        let path = format!("/sandboxes/{id}/snapshots");
        let ann = &ann;
        async move { ann.api("POST", &path, None).await }
    };
    let answers = futures_util::future::join_all(sandboxes.iter().map(keep)).await;
    let kept = answers.iter().filter(|(status, _)| *status == 201).count();
    // Two fit. Those that were refused may have taken room for a moment that another lacked.
    assert!((1..=2).contains(&kept), "{answers:?}");
    for (_, refused) in answers.iter().filter(|(status, _)| *status != 201) {
        assert!(refused["message"].as_str().unwrap().contains("quota"), "{refused}");
    }
    assert_eq!(files(&home).len(), kept, "nothing is left of the others");
    for id in &sandboxes {
        assert_eq!(ann.api("DELETE", &format!("/sandboxes/{id}"), None).await.0, 204);
    }
    gone(home, server).await;
}

/// What a pause reserved for its worst case is there for others once it is on record, while its layer rests in memory.
#[tokio::test]
async fn a_pause_on_record_holds_no_more_of_the_quota_than_it_takes() {
    let home = Home::new();
    let server = home.up();
    let ann = Caller::of(&server, "ann").await;
    let (many, token) = ann.create(json!({"templateID": "base", "timeout": 60})).await;
    let body =
        json!({"cmd": ["sh", "-c", "mkdir many; for i in $(seq 300); do echo > many/$i; done"]});
    let request = ann.http.post(format!("{}/api/sandboxes/{many}/exec", ann.url));
    assert_eq!(answered(request.bearer_auth(&ann.key).json(&body)).await.1["exit"], 0);
    drop(token);
    let (large, token) = ann.create(json!({"templateID": "base", "timeout": 60})).await;
    let upload = ann.upload((&large, &token), "/home/user/large").body(vec![7_u8; 10 << 20]);
    assert_eq!(answered(upload).await.0, 200);
    let quota = json!({"value": 50, "expectedVersion": 0, "scope": "global"}).to_string();
    let path = "/api/config/quota.blobs_mb";
    assert_eq!(
        server.request("PUT", path, Some(&server.key), Some(quota.into_bytes())).await.0,
        200
    );
    ann.pause(&many).await;
    let (status, kept) = ann.api("POST", &format!("/sandboxes/{large}/snapshots"), None).await;
    assert_eq!(status, 201, "{kept}");
    for id in [&many, &large] {
        assert_eq!(ann.api("DELETE", &format!("/sandboxes/{id}"), None).await.0, 204);
    }
    gone(home, server).await;
}

#[tokio::test]
async fn what_is_kept_counts_for_the_quota_until_it_is_erased() {
    let home = Home::new();
    let server = home.up();
    let ann = Caller::of(&server, "ann").await;
    let (id, token) = ann.create(json!({"templateID": "base", "timeout": 60})).await;
    let upload = ann.upload((&id, &token), "/home/user/large").body(vec![7_u8; 3 * 1024 * 1024]);
    assert_eq!(answered(upload).await.0, 200);
    let quota = json!({"value": 5, "expectedVersion": 0, "scope": "global"}).to_string();
    let path = "/api/config/quota.blobs_mb";
    let (status, set) =
        server.request("PUT", path, Some(&server.key), Some(quota.into_bytes())).await;
    assert_eq!(status, 200, "{set}");
    // The first one fits, and no second one does: what is left is known before anything is written.
    let snapshots = format!("/sandboxes/{id}/snapshots");
    let (status, kept) = ann.api("POST", &snapshots, None).await;
    assert_eq!(status, 201, "{kept}");
    for path in [&snapshots, &format!("/sandboxes/{id}/pause")] {
        let (status, refused) = ann.api("POST", path, None).await;
        assert!(
            status >= 400 && refused["message"].as_str().unwrap().contains("quota"),
            "{refused}"
        );
        assert_eq!(files(&home).len(), 1, "nothing is left of {path}");
    }
    let at = (id.as_str(), token.as_str());
    let stat = json!({"path": "/home/user/large"});
    assert_eq!(answered(ann.envd(at, "/filesystem.Filesystem/Stat", &stat)).await.0, 200);
    let snapshot = text(&kept, "snapshotID");
    assert_eq!(ann.api("DELETE", &format!("/templates/{snapshot}"), None).await.0, 204);
    ann.pause(&id).await;
    assert_eq!(ann.api("DELETE", &format!("/sandboxes/{id}"), None).await.0, 204);
    gone(home, server).await;
}
