//! A state directory that was moved, or restored in the place of a lost original: what it keeps can be used there.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use cofferdam_tests::e2b::Caller;
use cofferdam_tests::{Home, text};
use serde_json::json;

use super::built::{built, run};
use super::gone;
use crate::support::{count, said, texts, until};

const SOON: Duration = Duration::from_secs(30);

fn copied(from: &Path, to: &Path) {
    let status = Command::new("cp").arg("-a").arg(from.join(".")).arg(to).status().unwrap();
    assert!(status.success());
}

async fn wrote(ann: &Caller, of: (&str, &str), word: &str) {
    let said = ann.started(of, "/bin/sh", &["-c", &format!("echo {word} > /home/user/m")]).await;
    assert!(!said.contains("error"), "{said}");
}

/// What a sandbox has in its file.
async fn has(ann: &Caller, of: (&str, &str)) -> String {
    ann.started(of, "/bin/sh", &["-c", "cat /home/user/m"]).await
}

fn encoded(word: &str) -> String {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.encode(word)
}

async fn paused(ann: &Caller, word: &str) -> (String, String) {
    let (id, token) = ann.create(json!({"templateID": "base", "timeout": 300})).await;
    wrote(ann, (&id, &token), word).await;
    let (status, why) = ann.api("POST", &format!("/sandboxes/{id}/pause"), None).await;
    assert_eq!(status, 204, "{why}");
    (id, token)
}

#[tokio::test]
async fn a3l_what_is_kept_is_used_after_an_adoption_and_what_is_lost_is_said() {
    let home = Home::new();
    let mut server = home.up();
    let ann = Caller::of(&server, "ann").await;
    let (id, token) = paused(&ann, "one").await;
    let (lost, _) = paused(&ann, "lost").await;
    let (made, made_token) = ann.create(json!({"templateID": "base", "timeout": 300})).await;
    wrote(&ann, (&made, &made_token), "two").await;
    let (status, snapshot) =
        ann.api("POST", &format!("/sandboxes/{made}/snapshots"), Some(json!({}))).await;
    assert_eq!(status, 201, "{snapshot}");
    let snapshot = text(&snapshot, "snapshotID");
    assert_eq!(ann.api("DELETE", &format!("/sandboxes/{made}"), None).await.0, 204);
    let (template, end) = built(&ann, "web", json!([run("echo three > /home/user/m")])).await;
    assert_eq!(end["status"], "ready", "{end}");
    let sql = server.sql().await;
    let unsealed =
        "SELECT count(*) FROM app.snapshots WHERE sealed_at IS NULL AND erased_at IS NULL";
    until("all is sealed", SOON, async || count(&sql, unsealed).await == 0).await;
    let of_lost = format!("SELECT snapshot_id FROM app.live_sandboxes WHERE id = '{lost}'");
    let of_lost = texts(&sql, &of_lost).await;
    sql.close().await;
    assert!(server.stop().success());
    // Another directory, and the original is gone; of one file the backup has nothing, and one is of another time.
    let other = Home::empty();
    copied(home.path(), other.path());
    drop(home);
    let kept = other.path().join("snapshots");
    fs::remove_file(kept.join(format!("{}.snap", of_lost[0]))).unwrap();
    let unknown = "k".repeat(20);
    fs::write(kept.join(format!("{unknown}.snap")), "of another time").unwrap();
    let adopted = other.run(&["adopt"]);
    let words = said(&adopted);
    assert_eq!(adopted.status.code(), Some(0), "{words}");
    for part in
        ["recorded at this place now", "its sandbox has ended", &lost, &of_lost[0], &unknown]
    {
        assert!(words.contains(part), "{part}: {words}");
    }
    assert!(kept.join(format!("unknown/{unknown}.snap")).exists());
    let again = said(&other.run(&["adopt"]));
    assert!(!again.contains("missing") && !again.contains("no row knows"), "{again}");
    let server = other.up();
    let ann = Caller::of(&server, "ann").await;
    let resume = |id: &str| format!("/sandboxes/{id}/resume");
    let (status, why) = ann.api("POST", &resume(&id), Some(json!({"timeout": 300}))).await;
    assert_eq!(status, 201, "{why}");
    let token = why["envdAccessToken"].as_str().map_or(token, str::to_owned);
    let found = has(&ann, (&id, &token)).await;
    assert!(found.contains(&encoded("one\n")), "{found}");
    for (from, word) in [(&snapshot, "two\n"), (&template, "three\n")] {
        let (id, token) = ann.create(json!({"templateID": from, "timeout": 300})).await;
        let found = has(&ann, (&id, &token)).await;
        assert!(found.contains(&encoded(word)), "{from}: {found}");
        assert_eq!(ann.api("DELETE", &format!("/sandboxes/{id}"), None).await.0, 204);
    }
    let (status, why) = ann.api("POST", &resume(&lost), Some(json!({"timeout": 300}))).await;
    assert_eq!(status, 404, "{why}");
    let (status, view) = server.get_as(&ann.key, &format!("/api/sandboxes/{lost}")).await;
    assert!(status == 200 && view["state"] == "ended", "{view}");
    assert!(text(&view, "endReason").contains("missing"), "{view}");
    assert_eq!(ann.api("DELETE", &format!("/sandboxes/{id}"), None).await.0, 204);
    let sql = server.sql().await;
    let moved = "SELECT count(*) FROM app.audit WHERE op IN ('place.moved', 'snapshot.lost')";
    assert!(count(&sql, moved).await >= 2);
    // No other way changes a place.
    let by_hand = "UPDATE app.snapshots SET place = 'x:/y' WHERE gone_at IS NULL";
    assert!(sqlx::query(by_hand).execute(&sql).await.is_err());
    sql.close().await;
    gone(other, server).await;
}

#[tokio::test]
async fn a3l_a_directory_that_is_moved_keeps_its_paused_sandboxes_and_a_missing_file_is_no_go() {
    let home = Home::new();
    let mut server = home.up();
    let ann = Caller::of(&server, "ann").await;
    let (id, _) = paused(&ann, "one").await;
    let sql = server.sql().await;
    let unsealed =
        "SELECT count(*) FROM app.snapshots WHERE sealed_at IS NULL AND erased_at IS NULL";
    until("all is sealed", SOON, async || count(&sql, unsealed).await == 0).await;
    sql.close().await;
    assert!(server.stop().success());
    let moved = Home::new();
    fs::remove_dir_all(moved.path()).unwrap();
    fs::rename(home.path(), moved.path()).unwrap();
    let mut server = moved.up();
    let ann = Caller::of(&server, "ann").await;
    let path = format!("/sandboxes/{id}/resume");
    let (status, why) = ann.api("POST", &path, Some(json!({"timeout": 300}))).await;
    assert_eq!(status, 201, "{why}");
    assert_eq!(ann.api("POST", &format!("/sandboxes/{id}/pause"), None).await.0, 204);
    let sql = server.sql().await;
    until("all is sealed", SOON, async || count(&sql, unsealed).await == 0).await;
    sql.close().await;
    assert!(server.stop().success());
    // Its disk is not mounted, say: nothing is given up, and nobody is told that all is well.
    let (kept, away) = (moved.path().join("snapshots"), moved.path().join("away"));
    fs::rename(&kept, &away).unwrap();
    let mut server = moved.up();
    let ann = Caller::of(&server, "ann").await;
    let (status, why) = ann.api("POST", &path, Some(json!({"timeout": 300}))).await;
    assert!(status == 409 && why.to_string().contains("its file is missing on this host"), "{why}");
    let proved = moved.run(&["prove"]);
    assert_eq!(proved.status.code(), Some(1));
    assert!(said(&proved).contains("kept_files_are_there"), "{}", said(&proved));
    assert!(server.stop().success());
    fs::remove_dir_all(&kept).ok();
    fs::rename(&away, &kept).unwrap();
    let server = moved.up();
    let ann = Caller::of(&server, "ann").await;
    let (status, why) = ann.api("POST", &path, Some(json!({"timeout": 300}))).await;
    assert_eq!(status, 201, "{why}");
    assert_eq!(ann.api("DELETE", &format!("/sandboxes/{id}"), None).await.0, 204);
    gone(moved, server).await;
}
