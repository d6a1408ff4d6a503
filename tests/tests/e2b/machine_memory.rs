//! Pauses of machines that keep memory: processes go on in the next life, and what must be new there is.

use std::fs;
use std::path::Path;
use std::time::Duration;

use cofferdam_tests::e2b::Caller;
use cofferdam_tests::programs::write_program;
use cofferdam_tests::{Home, Server, text};
use serde_json::json;

use super::classes::encoded;
use super::gone;
use super::kept::{erased, files};
use crate::support::has_class;
use crate::support::{count, texts, until};

const CLASS: &str = "microvm";
const SOON: Duration = Duration::from_secs(30);
/// Counts on in a file that it writes anew each time, beside a secret that is nowhere but in its memory.
const COUNTER: &str = r#"
import os, time
secret, n = os.urandom(16).hex(), 0
while True:
    n += 1
    with open("/tmp/.count", "w") as out: out.write(f"{secret} {n} {os.getpid()}")
    os.rename("/tmp/.count", "/tmp/count")
    time.sleep(0.05)
"#;

/// What the process says of itself once it counted again: its secret, how far it is, its id.
async fn counted(ann: &Caller, at: (&str, &str)) -> (String, u64, u64) {
    let look = "rm -f /tmp/count; for n in $(seq 100); do test -e /tmp/count && break; sleep 0.1; done; cat /tmp/count || echo none";
    let said = printed(&ann.started(at, "sh", &["-c", look]).await);
    let mut words = said.split(' ').map(str::to_owned);
    let mut next = || words.next().unwrap_or_else(|| panic!("{said}"));
    let (secret, n, pid) = (next(), next(), next());
    (secret, n.parse().unwrap(), pid.trim().parse().unwrap())
}

/// What a command printed.
fn printed(events: &str) -> String {
    use base64::Engine as _;
    let data = events.split("\"stdout\":\"").nth(1).and_then(|data| data.split('"').next());
    let data = data.unwrap_or_else(|| panic!("{events}"));
    let bytes = base64::engine::general_purpose::STANDARD.decode(data).unwrap();
    String::from_utf8(bytes).unwrap()
}

async fn begin(ann: &Caller, at: (&str, &str)) {
    let script = format!("nohup python3 -c '{COUNTER}' > /dev/null 2>&1 &");
    ann.started(at, "sh", &["-c", &script]).await;
}

/// A sandbox with that process.
async fn begun(server: &Server) -> (Caller, String, String) {
    let ann = Caller::of(server, "ann").await.in_class(CLASS);
    let (id, token) = ann.create(json!({"templateID": "base", "timeout": 300})).await;
    begin(&ann, (&id, &token)).await;
    (ann, id, token)
}

async fn resumed(ann: &Caller, id: &str, more: serde_json::Value) -> (u16, serde_json::Value) {
    let mut body = json!({"timeout": 300});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    ann.resume(id, body).await
}

/// Its files are there, and its process is not.
async fn assert_files_alone(ann: &Caller, at: (&str, &str)) {
    let look = "test -e /tmp/count && echo kept; pgrep -x python3 > /dev/null || echo alone";
    let said = ann.started(at, "sh", &["-c", &format!("({look}) > /tmp/s; cat /tmp/s")]).await;
    assert!(said.contains(&encoded("kept\nalone\n")), "{said}");
}

#[tokio::test]
async fn a_process_of_a_machine_counts_on_after_each_pause_and_the_clock_is_right() {
    if !has_class(CLASS) {
        return;
    }
    let home = Home::new();
    let server = home.up();
    let sql = server.sql().await;
    let (ann, id, mut token) = begun(&server).await;
    let (secret, mut before, pid) = counted(&ann, (&id, &token)).await;
    let numbers = "head -c 16 /dev/urandom | od -An -tx1";
    let mut seen = vec![printed(&ann.started((&id, &token), "sh", &["-c", numbers]).await)];
    for round in 0..2 {
        ann.pause(&id).await;
        let kept = files(&home);
        assert_eq!(kept.len(), 1);
        let bytes = fs::read(&kept[0]).unwrap();
        let has = |word: &[u8]| bytes.windows(word.len()).any(|part| part == word);
        assert!(!has(secret.as_bytes()), "it is sealed");
        // How QEMU begins what it writes. Its first four bytes alone are in one of fifty sealed files of this size by chance.
        assert!(!has(b"QEVM\0\0\0\x03"), "it is sealed");
        let row =
            "SELECT memory || ' ' || kind || ' ' || bytes FROM app.snapshots WHERE gone_at IS NULL";
        assert_eq!(texts(&sql, row).await, [format!("true pause {}", bytes.len())]);
        // Longer than a clock may be wrong.
        tokio::time::sleep(Duration::from_secs(4)).await;
        let (status, again) = resumed(&ann, &id, json!({})).await;
        assert_eq!(status, 201, "{again}");
        token = text(&again, "envdAccessToken");
        let at = (id.as_str(), token.as_str());
        let (now, n, now_pid) = counted(&ann, at).await;
        assert_eq!((&now, now_pid), (&secret, pid), "round {round}");
        assert!(n > before, "round {round}: {n} after {before}");
        before = n;
        let time = printed(&ann.started(at, "date", &["+%s"]).await);
        let time: u64 = time.trim().parse().unwrap();
        let host = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        assert!(host.as_secs().abs_diff(time) <= 2, "{time} at {}", host.as_secs());
        seen.push(printed(&ann.started(at, "sh", &["-c", numbers]).await));
        until("the file is erased", SOON, async || files(&home).is_empty()).await;
    }
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), 3, "{seen:?}");
    // Two sandboxes never have one memory: a fork of a paused one begins with its files.
    ann.pause(&id).await;
    let fork = json!({"count": 1, "timeout": 60});
    let (status, forks) = ann.api("POST", &format!("/sandboxes/{id}/fork"), Some(fork)).await;
    assert_eq!(status, 201, "{forks}");
    let fork = &forks[0]["sandbox"];
    let (fork, its) = (text(fork, "sandboxID"), text(fork, "envdAccessToken"));
    assert_files_alone(&ann, (&fork, &its)).await;
    ann.kill(&fork).await;
    ann.kill(&id).await;
    erased(&home).await;
    assert_eq!(count(&sql, "SELECT count(*) FROM app.snapshots WHERE gone_at IS NULL").await, 0);
    sql.close().await;
    gone(home, server).await;
}

#[tokio::test]
async fn a_damaged_memory_of_a_machine_resumes_nothing_and_its_files_can_be_used() {
    if !has_class(CLASS) {
        return;
    }
    let home = Home::new();
    let server = home.up();
    let (ann, id, token) = begun(&server).await;
    counted(&ann, (&id, &token)).await;
    ann.pause(&id).await;
    let kept = files(&home).remove(0);
    let mut bytes = fs::read(&kept).unwrap();
    let at = bytes.len() / 2;
    bytes[at] ^= 1;
    fs::write(&kept, &bytes).unwrap();
    let (status, refused) = resumed(&ann, &id, json!({})).await;
    assert_eq!(status, 409, "{refused}");
    assert_eq!(ann.api("GET", &format!("/sandboxes/{id}"), None).await.1["state"], "paused");
    // They are before it.
    let (status, again) = resumed(&ann, &id, json!({"memory": false})).await;
    assert_eq!(status, 201, "{again}");
    assert_files_alone(&ann, (&id, &text(&again, "envdAccessToken"))).await;
    ann.kill(&id).await;
    gone(home, server).await;
}

/// An emulator whose version is said to be this, and which goes on with nothing where that is asked for.
fn emulator(bin: &Path, version: &str, goes_on: bool) {
    let real = std::env::split_paths(&std::env::var_os("PATH").unwrap())
        .map(|dir| dir.join("qemu-system-x86_64"))
        .find(|path| path.is_file())
        .unwrap();
    let real = real.display();
    let refuses = if goes_on {
        ""
    } else {
        "*\" -incoming \"*) echo 'it goes on with nothing' >&2; exit 1;;"
    };
    let script = format!(
        "#!/bin/sh\ncase \" $* \" in *\" --version \"*) echo 'QEMU emulator version {version}'; exit 0;; {refuses} esac\nexec {real} \"$@\"\n"
    );
    write_program(&bin.join("qemu-system-x86_64"), &script);
}

#[tokio::test]
async fn a_memory_of_another_emulator_is_refused_by_name_and_its_sandbox_stays_paused() {
    if !has_class(CLASS) {
        return;
    }
    let home = Home::new();
    // Where the emulator's user finds it.
    let open = tempfile::Builder::new().prefix("cofferdam-qemu-").tempdir().unwrap();
    let mode = <fs::Permissions as std::os::unix::fs::PermissionsExt>::from_mode(0o755);
    fs::set_permissions(open.path(), mode).unwrap();
    emulator(open.path(), "1", true);
    let path = format!("{}:{}", open.path().display(), std::env::var("PATH").unwrap());
    let with = [("PATH", path.as_str())];
    let mut server = home.up_with(&[], &with);
    let (ann, id, token) = begun(&server).await;
    counted(&ann, (&id, &token)).await;
    ann.pause(&id).await;
    emulator(open.path(), "1", false);
    let (status, refused) = resumed(&ann, &id, json!({})).await;
    let why = refused["message"].as_str().unwrap();
    let is_named = why.contains("stays paused") && why.contains("it goes on with nothing");
    assert!(status == 409 && is_named, "{refused}");
    assert!(server.stop().success());
    emulator(open.path(), "2", true);
    let server = home.up_with(&[], &with);
    let ann = Caller { url: server.url.clone(), ..ann };
    let (status, refused) = resumed(&ann, &id, json!({})).await;
    let why = refused["message"].as_str().unwrap();
    let named =
        "the emulator changed: it was QEMU emulator version 1, and is QEMU emulator version 2";
    assert!(status == 409 && why.contains("stays paused") && why.contains(named), "{refused}");
    let (status, again) = resumed(&ann, &id, json!({"memory": false})).await;
    assert_eq!(status, 201, "{again}");
    assert_files_alone(&ann, (&id, &text(&again, "envdAccessToken"))).await;
    ann.kill(&id).await;
    gone(home, server).await;
}
