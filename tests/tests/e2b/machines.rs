//! Pause, resume, snapshot and fork of machines: their layer is handed out by their init.

use cofferdam_tests::e2b::Caller;
use cofferdam_tests::{Home, text};
use serde_json::json;

use super::classes::encoded;
use super::gone;
use super::kept::{by_commands, damaged};
use super::kept_faults::{ANSWERED, killed_around_a_pause, killed_around_a_resume, without_room};
use crate::support::has_class;
use crate::support::texts;

const CLASS: &str = "microvm";
/// After a request was sent, in ms: a machine's files take some 0.3 s, and so does its start.
const MOMENTS: [u64; 5] = [0, 60, 150, 350, ANSWERED];

#[tokio::test]
async fn a_machine_is_paused_resumed_forked_and_kept_by_commands() {
    if !has_class(CLASS) {
        return;
    }
    let home = Home::new();
    let server = home.up();
    by_commands(&home, &server, CLASS).await;
    let sql = server.sql().await;
    // What was made from the snapshot named no class.
    let classes = "SELECT DISTINCT effective->>'isolationClass' FROM app.sbx_runs ORDER BY 1";
    assert_eq!(texts(&sql, classes).await, ["container", CLASS]);
    sql.close().await;
    gone(home, server).await;
}

#[tokio::test]
async fn a_damaged_file_of_a_machine_is_refused_and_it_stays_paused() {
    if has_class(CLASS) {
        damaged(CLASS).await;
    }
}

#[tokio::test]
async fn a_server_that_is_killed_around_a_pause_of_a_machine_leaves_it_done_or_undone() {
    if has_class(CLASS) {
        killed_around_a_pause(CLASS, &MOMENTS).await;
    }
}

#[tokio::test]
async fn a_server_that_is_killed_around_a_resume_of_a_machine_leaves_it_paused_or_ended() {
    if has_class(CLASS) {
        killed_around_a_resume(CLASS, &MOMENTS).await;
    }
}

#[tokio::test]
async fn a_disk_without_room_keeps_nothing_of_a_machine_which_goes_on() {
    if has_class(CLASS) {
        without_room(CLASS).await;
    }
}

/// What a command printed, as its event has it.
fn printed(said: &str) -> String {
    let data = said.split("\"stdout\":\"").nth(1).and_then(|data| data.split('"').next());
    data.unwrap_or_else(|| panic!("{said}")).to_owned()
}

/// Of one stored machine, begun with the same files: nothing but these is the same.
#[tokio::test]
async fn machines_with_the_same_files_share_no_numbers_and_no_boot() {
    if !has_class(CLASS) {
        return;
    }
    let home = Home::new();
    let server = home.up();
    let ann = Caller::of(&server, "ann").await.in_class(CLASS);
    let (id, token) = ann.create(json!({"templateID": "base", "timeout": 300})).await;
    let looks = ["cat /proc/sys/kernel/random/boot_id", "head -c 16 /dev/urandom | od -An -tx1"];
    ann.started((&id, &token), "sh", &["-c", "echo kept > /tmp/kept"]).await;
    let mut seen = Vec::new();
    for look in looks {
        seen.push(printed(&ann.started((&id, &token), "sh", &["-c", look]).await));
    }
    let fork = json!({"count": 2, "timeout": 60});
    let (status, forks) = ann.api("POST", &format!("/sandboxes/{id}/fork"), Some(fork)).await;
    assert_eq!(status, 201, "{forks}");
    for fork in forks.as_array().unwrap() {
        let fork = &fork["sandbox"];
        let at = (text(fork, "sandboxID"), text(fork, "envdAccessToken"));
        let at = (at.0.as_str(), at.1.as_str());
        let kept = ann.started(at, "cat", &["/tmp/kept"]).await;
        assert!(kept.contains(&encoded("kept\n")), "{kept}");
        for look in looks {
            seen.push(printed(&ann.started(at, "sh", &["-c", look]).await));
        }
        assert_eq!(ann.api("DELETE", &format!("/sandboxes/{}", at.0), None).await.0, 204);
    }
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), 6, "{seen:?}");
    assert_eq!(ann.api("DELETE", &format!("/sandboxes/{id}"), None).await.0, 204);
    gone(home, server).await;
}
