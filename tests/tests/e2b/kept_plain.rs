//! What a pause keeps before it is sealed: used as it is, sealed soon, and never lost but with the process that holds it.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use cofferdam_tests::{Home, Server, text};
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use super::kept::{erased, files, rest, sealed};
use super::kept_faults::{Next, settled};
use super::{Caller, answered, gone};
use crate::support::{count, found, texts, until};

const SOON: Duration = Duration::from_secs(30);
/// What a request takes until it waits for a sealer.
const ASKED: Duration = Duration::from_millis(500);
const MARKER: &[u8] = b"the-plain-marker-of-a-paused-tenant;";
/// Of a file that takes a sealer long enough to be met at its work.
const BYTES: usize = 48 * 1024 * 1024;

fn content() -> Vec<u8> {
    MARKER.iter().copied().cycle().take(BYTES).collect()
}

async fn marked(server: &Server, template: Value) -> (Caller, String) {
    let ann = Caller::of(server, "ann").await;
    let (id, token) = ann.create(template).await;
    let upload = ann.upload((&id, &token), "/home/user/marked").body(content());
    assert_eq!(answered(upload).await.0, 200);
    (ann, id)
}

fn base() -> Value {
    json!({"templateID": "base", "timeout": 600})
}

/// Resumes it and reads its file.
async fn resumed(ann: &Caller, id: &str) {
    let path = format!("/v2/sandboxes/{id}/connect");
    let (status, made) = ann.api("POST", &path, Some(json!({"timeout": 600}))).await;
    assert_eq!(status, 201, "{made}");
    let token = text(&made, "envdAccessToken");
    let read = ann.download((id, &token), "/home/user/marked").send().await.unwrap();
    assert!(read.bytes().await.unwrap() == content(), "its file is as it was");
}

async fn pause(ann: &Caller, id: &str) {
    let (status, answer) = ann.api("POST", &format!("/sandboxes/{id}/pause"), None).await;
    assert_eq!(status, 204, "{answer}");
}

/// Pauses it, and stops its sealer as soon as that is there: however busy this machine is, nothing is sealed yet.
async fn pause_unsealed(server: &Server, ann: &Caller, id: &str) -> Pid {
    let server = server.pid();
    let watching = std::thread::spawn(move || {
        let since = Instant::now();
        while since.elapsed() < SOON {
            if let [sealer] = sealers(server)[..] {
                kill(sealer, Signal::SIGSTOP).unwrap();
                return sealer;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        panic!("no sealer");
    });
    pause(ann, id).await;
    watching.join().unwrap()
}

/// Lets a stopped sealer go on, once what is asked meanwhile has reached it. A life that has begun has ended it.
async fn go_on(sealer: Pid) {
    tokio::time::sleep(ASKED).await;
    match kill(sealer, Signal::SIGCONT) {
        Ok(()) | Err(Errno::ESRCH) => {}
        Err(error) => panic!("{error}"),
    }
}

/// The processes that have a layer of this server, as soon as a hang-up does not end them: the kernel sends one to whoever is
/// stopped when its parent ends.
pub(super) fn sealers(server: i32) -> Vec<Pid> {
    named(server, "sealer")
}

/// The one that waits for the next pause.
async fn spare(server: &Server) -> Pid {
    let pid = server.pid();
    found("a sealer that waits", async || match named(pid, "sealer-waits")[..] {
        [spare] => Some(spare),
        _ => None,
    })
    .await
}

fn named(server: i32, name: &str) -> Vec<Pid> {
    let parent = format!("\nPPid:\t{server}\n");
    let all = fs::read_dir("/proc").unwrap().flatten();
    let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let seals = |pid: &i32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let blocked = status.lines().find_map(|line| line.strip_prefix("SigBlk:\t"));
        let blocked = blocked.and_then(|mask| u64::from_str_radix(mask, 16).ok());
        let outlives = blocked.is_some_and(|mask| mask & 1 == 1);
        let is_named = status.starts_with(&format!("Name:\t{name}\n"));
        line.ends_with(b"\0seal-layer\0") && is_named && status.contains(&parent) && outlives
    };
    pids.filter(seals).map(Pid::from_raw).collect()
}

/// Whether any file below a directory has the marker.
fn has_marker(dir: &Path) -> bool {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).any(|path| {
        let Ok(found) = fs::symlink_metadata(&path) else { return false };
        match found.is_dir() {
            true => has_marker(&path),
            false if !found.is_file() => false,
            false => fs::read(&path)
                .is_ok_and(|bytes| bytes.windows(MARKER.len()).any(|part| part == MARKER)),
        }
    })
}

#[tokio::test]
async fn a_pause_answers_before_it_has_sealed_and_soon_no_plain_byte_is_left() {
    let home = Home::new();
    let server = home.up();
    let sql = server.sql().await;
    let (ann, id) = marked(&server, base()).await;
    let sealer = pause_unsealed(&server, &ann, &id).await;
    let plain = "SELECT plain FROM app.snapshots WHERE sealed_at IS NULL AND erased_at IS NULL";
    let layers = texts(&sql, plain).await;
    assert_eq!(layers.len(), 1, "it answers first");
    let evidence = "SELECT c ->> 'observed' FROM app.secure_wipe_evidence e, jsonb_array_elements(e.evidence -> 'checks') c \
         WHERE e.method = 'layer-kept' AND c ->> 'kind' = 'layer'";
    assert_eq!(texts(&sql, evidence).await, ["kept: to be sealed, or for the next life"]);
    // Used as it is, by one life.
    let path = format!("/sandboxes/{id}/resume");
    let body = || Some(json!({"timeout": 600}));
    let (one, two, ()) =
        tokio::join!(ann.api("POST", &path, body()), ann.api("POST", &path, body()), go_on(sealer));
    let mut both = [one.0, two.0];
    both.sort_unstable();
    assert!(both == [201, 409] || both == [201, 503], "{} {}", one.1, two.1);
    erased(&home).await;
    assert_eq!(
        count(&sql, "SELECT count(*) FROM app.snapshots WHERE sealed_at IS NOT NULL").await,
        0
    );
    let sealer = pause_unsealed(&server, &ann, &id).await;
    tokio::join!(resumed(&ann, &id), go_on(sealer));
    // Its last life's evidence has the layer that it began with.
    pause(&ann, &id).await;
    sealed(&sql).await;
    assert_eq!(sealers(server.pid()), []);
    assert!(!has_marker(home.path()), "what is kept is sealed");
    let sizes = "SELECT bytes::text FROM app.snapshots WHERE sealed_at IS NOT NULL";
    let file = fs::metadata(&files(&home)[0]).unwrap().len();
    assert_eq!(texts(&sql, sizes).await, [file.to_string()]);
    let again = "SELECT count(DISTINCT plain) FROM app.snapshots";
    assert_eq!(count(&sql, again).await, 1, "one layer went through all lives: {layers:?}");
    resumed(&ann, &id).await;
    assert_eq!(ann.api("DELETE", &format!("/sandboxes/{id}"), None).await.0, 204);
    erased(&home).await;
    sql.close().await;
    gone(home, server).await;
}

#[tokio::test]
async fn a_paused_sandbox_that_is_killed_before_it_is_sealed_leaves_nothing() {
    let home = Home::new();
    let server = home.up();
    let sql = server.sql().await;
    let (ann, id) = marked(&server, base()).await;
    pause_unsealed(&server, &ann, &id).await;
    assert_eq!(ann.api("DELETE", &format!("/sandboxes/{id}"), None).await.0, 204);
    assert_eq!(sealers(server.pid()), []);
    assert_eq!(files(&home), Vec::<std::path::PathBuf>::new());
    let gone_at =
        "SELECT count(*) FROM app.snapshots WHERE gone_at IS NOT NULL AND sealed_at IS NULL";
    assert_eq!(count(&sql, gone_at).await, 1);
    sql.close().await;
    gone(home, server).await;
}

/// Asks, and waits until the server that is to die of it has died.
pub(super) async fn fatal(server: &mut Server, ann: &Caller, (path, body): (&str, Value)) {
    let asked = ann.http.post(format!("{}{path}", server.url)).header("x-api-key", &ann.key);
    let asked = asked.json(&body).send();
    let _ = tokio::time::timeout(SOON, asked).await;
    let pid = Pid::from_raw(server.pid());
    let dead = || {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit_once(')').is_none_or(|(_, rest)| rest.starts_with(" Z"))
    };
    until("the server is dead", SOON, async || dead()).await;
    server.kill();
}

/// With what its file was, or over.
async fn assert_settled(home: &Home, id: &str, want: &str) {
    let next = Next::of(home, id).await;
    assert_eq!(next.state, want);
    if want == "paused" {
        resumed(&next.ann, id).await;
        assert_eq!(next.ann.api("DELETE", &format!("/sandboxes/{id}"), None).await.0, 204);
    }
    erased(home).await;
    next.stop().await;
}

#[tokio::test]
async fn a_server_that_dies_between_kept_and_sealed_loses_nothing_that_is_on_record() {
    let home = Home::new();
    for (place, want) in [
        ("pause.held", "ended"),
        ("pause.recorded", "paused"),
        ("pause.ended", "paused"),
        ("layer.written", "paused"),
        ("layer.ended", "paused"),
    ] {
        let mut server = home.up_with(&[], &[("COFFERDAM_FAILPOINT", place)]);
        if place == "layer.ended" {
            rest(&home, "0");
        }
        let (ann, id) = marked(&server, base()).await;
        fatal(&mut server, &ann, (&format!("/sandboxes/{id}/pause"), json!({}))).await;
        assert_settled(&home, &id, want).await;
    }
    let server = home.up();
    gone(home, server).await;
}

#[tokio::test]
async fn a_server_that_dies_while_a_layer_is_lent_gives_it_back_until_its_next_life_runs() {
    let home = Home::new();
    for (place, want) in [
        ("layer.held", "paused"),
        ("resume.opened", "paused"),
        ("resume.recorded", "paused"),
        ("layer.begun", "ended"),
    ] {
        let mut server = home.up_with(&[], &[("COFFERDAM_FAILPOINT", place)]);
        let (ann, id) = marked(&server, base()).await;
        let sealer = pause_unsealed(&server, &ann, &id).await;
        let connect = (&*format!("/v2/sandboxes/{id}/connect"), json!({"timeout": 600}));
        tokio::join!(fatal(&mut server, &ann, connect), go_on(sealer));
        assert_settled(&home, &id, want).await;
    }
    let server = home.up();
    gone(home, server).await;
}

#[tokio::test]
async fn a_sealer_waits_for_the_next_pause_and_ends_with_its_server() {
    let home = Home::new();
    let mut server = home.up();
    let sql = server.sql().await;
    let (ann, id) = marked(&server, base()).await;
    let first = spare(&server).await;
    assert_eq!(pause_unsealed(&server, &ann, &id).await, first, "it has the work of the pause");
    resumed(&ann, &id).await;
    let next = spare(&server).await;
    assert_ne!(next, first);
    // One that is gone is replaced where it is needed.
    kill(next, Signal::SIGKILL).unwrap();
    pause(&ann, &id).await;
    sealed(&sql).await;
    resumed(&ann, &id).await;
    let third = spare(&server).await;
    let is_gone = |pid: Pid| kill(pid, None) == Err(Errno::ESRCH);
    sql.close().await;
    server.kill();
    until("it ends with a server that is killed", SOON, async || is_gone(third)).await;
    let mut server = home.up();
    marked(&server, base()).await;
    let last = spare(&server).await;
    server.stop();
    assert!(is_gone(last), "a server that stops ends it");
    let server = home.up();
    gone(home, server).await;
}

#[tokio::test]
async fn a_sealer_that_is_killed_is_replaced_and_with_its_server_its_files_are_reported_lost() {
    let home = Home::new();
    let mut server = home.up();
    let sql = server.sql().await;
    let (ann, id) = marked(&server, base()).await;
    let sealer = pause_unsealed(&server, &ann, &id).await;
    kill(sealer, Signal::SIGKILL).unwrap();
    sealed(&sql).await;
    resumed(&ann, &id).await;
    let sealer = pause_unsealed(&server, &ann, &id).await;
    assert_eq!(sealers(server.pid()), [sealer]);
    server.kill();
    kill(sealer, Signal::SIGKILL).unwrap();
    let next = home.up();
    until("it is over", SOON, async || settled(&sql, &id).await == "ended").await;
    let why = format!("SELECT end_reason FROM app.live_sandboxes WHERE id = '{id}'");
    assert!(texts(&sql, &why).await[0].starts_with("its files were lost before they were sealed"));
    let audit = "SELECT count(*) FROM app.audit WHERE op = 'snapshot.lost'";
    assert_eq!(count(&sql, audit).await, 1);
    erased(&home).await;
    sql.close().await;
    gone(home, next).await;
}
