//! Pause, resume, snapshot and fork where something fails: a server that is killed, a disk without room, a class that keeps
//! nothing.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::PathBuf;
use std::time::Duration;

use cofferdam_tests::{Home, Server, text};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use serde_json::{Value, json};
use sqlx::PgPool;

use super::kept::{erased, files};
use super::{Caller, answered, gone};
use crate::support::{count, part, said, texts, until};

const SOON: Duration = Duration::from_secs(30);
/// A moment in ms that is after the answer, on a busy machine too.
pub(super) const ANSWERED: u64 = 60_000;
/// After a request was sent, in ms: spread over the time that it takes. [`killed`] waits no longer than its answer.
const MOMENTS: [u64; 10] = [0, 10, 20, 40, 60, 80, 110, 150, 200, ANSWERED];
/// Of a file that takes long enough to be kept that some of the moments are within that time.
const BYTES: usize = 16 * 1024 * 1024;

/// CI takes every third, `make chaos` all of them.
fn moments() -> Vec<u64> {
    part(&MOMENTS, 3)
}

/// A sandbox with one large file in it.
async fn filled(ann: &Caller, more: Value) -> (String, String) {
    let mut body = json!({"templateID": "base", "timeout": 600});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let (id, token) = ann.create(body).await;
    let upload = ann.upload((&id, &token), "/home/user/large").body(vec![7_u8; BYTES]);
    assert_eq!(answered(upload).await.0, 200);
    (id, token)
}

/// The large file is there.
async fn assert_filled(ann: &Caller, id: &str, token: &str) {
    let stat = json!({"path": "/home/user/large"});
    let (_, entry) = answered(ann.envd((id, token), "/filesystem.Filesystem/Stat", &stat)).await;
    assert_eq!(entry["entry"]["size"], BYTES.to_string(), "{entry}");
}

/// Sends a request, kills its server so long after that or at its answer, and gives what was answered; 0: nothing was.
pub(super) async fn killed(
    server: &mut Server,
    ann: &Caller,
    (path, body): (String, Value),
    wait_ms: u64,
) -> u16 {
    let request = ann.http.post(format!("{}{path}", server.url));
    let request = request.header("x-api-key", &ann.key).json(&body);
    let mut asking =
        tokio::spawn(async move { request.send().await.map(|answer| answer.status().as_u16()) });
    let answered = tokio::time::timeout(Duration::from_millis(wait_ms), &mut asking).await;
    server.kill();
    let answered = match answered {
        Ok(answered) => answered,
        Err(_) => asking.await,
    };
    answered.unwrap().unwrap_or(0)
}

/// What the next server makes of a sandbox: `paused` or `ended`, once no life of it is under way.
pub(super) async fn settled(sql: &PgPool, id: &str) -> String {
    let row = format!(
        "SELECT CASE WHEN ended_at IS NOT NULL THEN 'ended' WHEN paused_at IS NOT NULL THEN 'paused' END FROM app.live_sandboxes l \
          WHERE id = '{id}' AND (ended_at IS NOT NULL OR paused_at IS NOT NULL) \
            AND NOT EXISTS (SELECT 1 FROM app.sbx_runs s WHERE s.run_id = l.run_id AND s.response IS NULL)"
    );
    until("it is paused or ended", SOON, async || !texts(sql, &row).await.is_empty()).await;
    texts(sql, &row).await.remove(0)
}

/// Resumes a paused sandbox by two requests at once, of which one does; looks at its file, and kills it.
async fn resumed_once(ann: &Caller, id: &str) {
    let path = format!("/sandboxes/{id}/resume");
    let body = || Some(json!({"timeout": 60}));
    let (one, two) = tokio::join!(ann.api("POST", &path, body()), ann.api("POST", &path, body()));
    let (done, other) = if one.0 == 201 { (one, two) } else { (two, one) };
    assert_eq!(done.0, 201, "{} {}", done.1, other.1);
    assert!([409, 503].contains(&other.0), "{}", other.1);
    assert_filled(ann, id, &text(&done.1, "envdAccessToken")).await;
    assert_eq!(ann.api("DELETE", &format!("/sandboxes/{id}"), None).await.0, 204);
    assert_eq!(ann.api("POST", &path, body()).await.0, 404);
}

/// A server with a sandbox of this class that holds the large file.
async fn begun(home: &Home, class: &'static str) -> (Server, Caller, String) {
    let server = home.up();
    let ann = Caller::of(&server, "ann").await.in_class(class);
    let (id, _) = filled(&ann, json!({})).await;
    (server, ann, id)
}

/// The server that is started after a killed one, and the same tenant at it.
pub(super) struct Next {
    server: Server,
    pub ann: Caller,
    pub sql: PgPool,
    /// What it made of the sandbox.
    pub state: String,
}

impl Next {
    pub(super) async fn of(home: &Home, id: &str) -> Self {
        let server = home.up();
        let sql = server.sql().await;
        let state = settled(&sql, id).await;
        Self { ann: Caller::of(&server, "ann").await, server, sql, state }
    }

    pub(super) async fn stop(self) {
        self.sql.close().await;
        stop(self.server).await;
    }
}

async fn stop(mut server: Server) {
    assert!(server.stop().success());
}

#[tokio::test]
async fn a_server_that_is_killed_around_a_pause_leaves_it_done_or_undone() {
    killed_around_a_pause("container", &moments()).await;
}

pub(super) async fn killed_around_a_pause(class: &'static str, moments: &[u64]) {
    let home = Home::new();
    let (mut done, mut undone) = (0, 0);
    for wait_ms in moments.iter().copied() {
        let (mut server, ann, id) = begun(&home, class).await;
        let pause = (format!("/sandboxes/{id}/pause"), json!({}));
        let said = killed(&mut server, &ann, pause, wait_ms).await;
        let next = Next::of(&home, &id).await;
        let ann = &next.ann;
        match next.state.as_str() {
            "paused" => {
                done += 1;
                resumed_once(ann, &id).await;
            }
            _ => {
                undone += 1;
                assert_ne!(said, 204, "what was acknowledged holds");
                assert_eq!(ann.api("POST", &format!("/sandboxes/{id}/connect"), None).await.0, 404);
            }
        }
        erased(&home).await;
        next.stop().await;
    }
    assert!(done > 0 && undone > 0, "{done} were paused, {undone} were not");
    let server = home.up();
    gone(home, server).await;
}

/// Until the next life is on record as running, the sandbox is paused and loses nothing; from then on it ends with its
/// server, as every sandbox does.
#[tokio::test]
async fn a_server_that_is_killed_around_a_resume_leaves_it_paused_or_ended_with_its_server() {
    killed_around_a_resume("container", &moments()).await;
}

pub(super) async fn killed_around_a_resume(class: &'static str, moments: &[u64]) {
    let home = Home::new();
    let (mut done, mut undone) = (0, 0);
    for wait_ms in moments.iter().copied() {
        let (mut server, ann, id) = begun(&home, class).await;
        ann.pause(&id).await;
        let connect = (format!("/sandboxes/{id}/connect"), json!({"timeout": 600}));
        let said = killed(&mut server, &ann, connect, wait_ms).await;
        let next = Next::of(&home, &id).await;
        let ann = &next.ann;
        let life = format!(
            "SELECT concat_ws(', ', started_at IS NOT NULL, end_reason) FROM app.live_sandboxes WHERE id = '{id}'"
        );
        match next.state.as_str() {
            "paused" => {
                undone += 1;
                assert_ne!(said, 201, "what was acknowledged had run");
                assert_eq!(files(&home).len(), 1, "{wait_ms}");
                resumed_once(ann, &id).await;
            }
            _ => {
                done += 1;
                let life = texts(&next.sql, &life).await;
                let is_lost = |it: &String| it.starts_with("t, its worker was lost");
                assert!(
                    life.iter().all(is_lost),
                    "{wait_ms}: it ends only with its server: {life:?}, {said}"
                );
                assert_eq!(ann.api("POST", &format!("/sandboxes/{id}/connect"), None).await.0, 404);
            }
        }
        erased(&home).await;
        next.stop().await;
    }
    assert!(done > 0 && undone > 0, "{done} ran, {undone} did not");
    let server = home.up();
    gone(home, server).await;
}

#[tokio::test]
async fn a_server_that_is_killed_around_a_snapshot_leaves_it_whole_or_not_at_all() {
    let home = Home::new();
    let (mut done, mut undone) = (0, 0);
    for wait_ms in moments() {
        let (mut server, ann, id) = begun(&home, "container").await;
        let snapshot = (format!("/sandboxes/{id}/snapshots"), json!({}));
        let said = killed(&mut server, &ann, snapshot, wait_ms).await;
        let next = Next::of(&home, &id).await;
        assert_eq!(next.state, "ended");
        let ann = &next.ann;
        let (_, listed) = ann.api("GET", "/snapshots", None).await;
        match listed.as_array().unwrap().as_slice() {
            [] => {
                undone += 1;
                assert_ne!(said, 201, "what was acknowledged holds");
            }
            [kept] => {
                done += 1;
                let snapshot = text(kept, "snapshotID");
                let of = json!({"templateID": snapshot, "timeout": 60});
                for _ in 0..2 {
                    let (made, token) = ann.create(of.clone()).await;
                    assert_filled(ann, &made, &token).await;
                    assert_eq!(ann.api("DELETE", &format!("/sandboxes/{made}"), None).await.0, 204);
                }
                let path = format!("/templates/{snapshot}");
                assert_eq!(ann.api("DELETE", &path, None).await.0, 204);
            }
            more => panic!("{more:?}"),
        }
        erased(&home).await;
        next.stop().await;
    }
    assert!(done > 0 && undone > 0, "{done} were kept, {undone} were not");
    let server = home.up();
    gone(home, server).await;
}

/// Of a sandbox that runs, and of one that is paused, by turns.
#[tokio::test]
async fn a_server_that_is_killed_around_a_fork_leaves_no_file_and_a_paused_origin_as_it_was() {
    let home = Home::new();
    for (n, wait_ms) in moments().into_iter().chain([600]).enumerate() {
        let (mut server, ann, id) = begun(&home, "container").await;
        let is_paused = n % 2 == 1;
        if is_paused {
            ann.pause(&id).await;
        }
        let fork = (format!("/sandboxes/{id}/fork"), json!({"count": 2, "timeout": 600}));
        killed(&mut server, &ann, fork, wait_ms).await;
        let next = Next::of(&home, &id).await;
        assert_eq!(next.state, if is_paused { "paused" } else { "ended" }, "{wait_ms}");
        for fork in texts(&next.sql, "SELECT id FROM app.live_sandboxes").await {
            if fork != id {
                assert_eq!(settled(&next.sql, &fork).await, "ended", "{wait_ms}");
            }
        }
        if is_paused {
            resumed_once(&next.ann, &id).await;
        }
        erased(&home).await;
        next.stop().await;
    }
    let server = home.up();
    gone(home, server).await;
}

/// A small file system of the test's own, where a home keeps its snapshots.
struct SmallStore(PathBuf);

impl SmallStore {
    fn of(home: &Home, size: &str) -> Self {
        let dir = home.path().join("snapshots");
        DirBuilder::new().mode(0o700).create(&dir).unwrap();
        let options = format!("size={size},mode=0700");
        mount(Some("tmpfs"), &dir, Some("tmpfs"), MsFlags::empty(), Some(options.as_str()))
            .expect("a tmpfs");
        Self(dir)
    }
}

impl Drop for SmallStore {
    fn drop(&mut self) {
        let _ = umount2(&self.0, MntFlags::MNT_DETACH);
    }
}

#[tokio::test]
async fn a_disk_without_room_refuses_what_is_to_be_kept_and_the_sandbox_goes_on() {
    without_room("container").await;
}

pub(super) async fn without_room(class: &'static str) {
    let home = Home::new();
    let store = SmallStore::of(&home, "512k");
    let server = home.up();
    let ann = Caller::of(&server, "default").await.in_class(class);
    let (id, token) = filled(&ann, json!({})).await;
    for door in ["pause", "snapshots", "fork", "pause"] {
        // Of a fork and a snapshot it says nothing.
        let body = (door == "pause").then(|| json!({"memory": false}));
        let (status, refused) = ann.api("POST", &format!("/sandboxes/{id}/{door}"), body).await;
        let why = refused["message"].as_str().unwrap();
        assert!(status == 503 && why.contains("disk has"), "{door} {refused}");
        assert_eq!(files(&home), Vec::<PathBuf>::new(), "{door}");
        assert_filled(&ann, &id, &token).await;
    }
    let refused = home.run(&["sandbox", "pause", &id, "--files-only"]);
    let why = said(&refused);
    assert!(!refused.status.success() && why.contains("disk has"), "{why}");
    // One that is to be paused when its time is over ends then.
    let (late, _) = filled(&ann, json!({"timeout": 3, "autoPause": true})).await;
    let sql = server.sql().await;
    assert_eq!(settled(&sql, &late).await, "ended");
    let why = format!("SELECT end_reason FROM app.live_sandboxes WHERE id = '{late}'");
    assert_eq!(texts(&sql, &why).await, ["its time was over"]);
    assert_eq!(count(&sql, "SELECT count(*) FROM app.snapshots").await, 0);
    assert_eq!(files(&home), Vec::<PathBuf>::new());
    // Once there is room, all is well.
    let remove = json!({"path": "/home/user/large"});
    let at = (id.as_str(), token.as_str());
    assert_eq!(answered(ann.envd(at, "/filesystem.Filesystem/Remove", &remove)).await.0, 200);
    let files_alone = Some(json!({"memory": false}));
    assert_eq!(ann.api("POST", &format!("/sandboxes/{id}/pause"), files_alone).await.0, 204);
    assert_eq!(ann.api("POST", &format!("/sandboxes/{id}/resume"), None).await.0, 201);
    assert_eq!(ann.api("DELETE", &format!("/sandboxes/{id}"), None).await.0, 204);
    sql.close().await;
    stop(server).await;
    drop(store);
    let server = home.up();
    gone(home, server).await;
}
