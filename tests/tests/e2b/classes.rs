//! Long-lived sandboxes of other classes than `container`: by the clients, and where a pause of gVisor's memory fails.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use cofferdam_tests::e2b::Caller;
use cofferdam_tests::not_run::not_run;
use cofferdam_tests::programs::write_program;
use cofferdam_tests::{Home, Server, repository, text};
use serde_json::json;

use super::kept::{erased, files};
use super::kept_faults::{Next, killed};
use super::network::greeter;
use super::restart::{How, by};
use super::{PYTHON, gone, installed, run};
use crate::support::{count, has_class, part, said, texts, until};

const SOON: Duration = Duration::from_secs(30);
/// After a pause was sent, in ms: spread over the time that it takes.
const MOMENTS: [u64; 6] = [0, 40, 120, 200, 300, 450];
/// What an operator sets to have memory kept with every runsc.
const MEMORY: (&str, &str) = ("COFFERDAM_GVISOR_MEMORY", "1");
/// In the memory of a process, and in no file.
const SECRET: &str = "a-word-that-only-memory-has";

/// Whether pauses keep memory by default with this host's runsc; where they do not, that is reported.
fn has_memory() -> bool {
    let doctor = Home::new().run_json(&["doctor", "--json"]);
    let found = doctor["pausesKeepMemory"]["gvisor"] == true;
    if !found {
        not_run("memory of pauses by default", &doctor["classNotes"]["gvisor"].to_string());
    }
    found
}

async fn by_python(class: &str) {
    let (true, Some(python)) = (has_class(class), installed(PYTHON[0])) else { return };
    let home = Home::new();
    let server = home.up();
    let mut command = Command::new(python);
    command.arg(repository().join("tests/tests/e2b").join("sync.py")).env("SANDBOX_CLASS", class);
    // What it expects of a pause depends on it.
    if Home::new().run_json(&["doctor", "--json"])["pausesKeepMemory"][class] == true {
        command.env("SANDBOX_MEMORY", "1");
    }
    run(&server, command, None).await;
    let sql = server.sql().await;
    let classes = "SELECT DISTINCT effective->>'isolationClass' FROM app.sbx_runs";
    assert_eq!(texts(&sql, classes).await, [class]);
    sql.close().await;
    assert_eq!(files(&home), Vec::<PathBuf>::new(), "what is not needed is erased");
    gone(home, server).await;
}

#[tokio::test]
#[ignore = "a minute: `make clients` runs it"]
async fn the_python_client_works_unmodified_in_the_class_gvisor() {
    by_python("gvisor").await;
}

#[tokio::test]
#[ignore = "a minute: `make clients` runs it"]
async fn the_python_client_works_unmodified_in_the_class_microvm() {
    by_python("microvm").await;
}

/// A resume that always works: whether a kernel that was written starts again is runsc's matter.
fn files_alone() -> serde_json::Value {
    json!({"timeout": 60, "memory": false})
}

/// A process that has the secret in its memory, and says how often it was asked.
async fn begin(ann: &Caller, at: (&str, &str)) {
    let script = format!(
        "nohup python3 -c 'import time; s = \"-\".join(\"{}\".split()); open(\"/tmp/up\", \"w\")\nwhile True: time.sleep(1)' > /dev/null 2>&1 &",
        SECRET.replace('-', " ")
    );
    ann.started(at, "sh", &["-c", &script]).await;
    until("it runs", SOON, async || {
        ann.started(at, "sh", &["-c", "test -e /tmp/up && echo it-is-up"])
            .await
            .contains(&encoded("it-is-up\n"))
    })
    .await;
}

/// A server that keeps memory, and a sandbox with that process.
async fn begun(home: &Home) -> (Server, Caller, String) {
    let server = home.up_with(&[], &[MEMORY]);
    let ann = Caller::of(&server, "ann").await.in_class("gvisor");
    let (id, token) = ann.create(json!({"templateID": "base", "timeout": 300})).await;
    begin(&ann, (&id, &token)).await;
    (server, ann, id)
}

pub(super) fn encoded(text: &str) -> String {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.encode(text)
}

async fn runs(ann: &Caller, at: (&str, &str)) -> bool {
    let script = "pgrep -f time.slee[p] > /dev/null && echo it-runs || echo it-does-not";
    ann.started(at, "sh", &["-c", script]).await.contains(&encoded("it-runs\n"))
}

#[tokio::test]
async fn a_killed_server_leaves_no_sandbox_of_the_class_gvisor() {
    if has_class("gvisor") {
        super::killed_server("gvisor").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_learns_that_its_sandbox_of_the_class_gvisor_ended_with_its_server() {
    if has_class("gvisor") {
        by(How::Stopped, "gvisor").await;
        by(How::Killed, "gvisor").await;
    }
}

#[tokio::test]
async fn a_class_that_is_not_one_is_refused_by_name() {
    let home = Home::new();
    let server = home.up();
    for (class, why) in [("strong", "x-cofferdam-class: \"strong\""), ("remote", "class_min")] {
        let ann = Caller::of(&server, "ann").await.in_class(class);
        let asked = json!({"templateID": "base"});
        let (status, refused) = ann.api("POST", "/v2/sandboxes", Some(asked)).await;
        assert_eq!(status, 400, "{refused}");
        assert!(refused["message"].as_str().unwrap().contains(why), "{refused}");
    }
    let done = home.run(&["sandbox", "create", "--class", "strong"]);
    assert!(!done.status.success() && said(&done).contains("classMin"), "{}", said(&done));
    gone(home, server).await;
}

#[tokio::test]
async fn a_kept_memory_is_sealed_listed_counted_and_erased() {
    if !has_class("gvisor") {
        return;
    }
    let home = Home::new();
    let (server, ann, id) = begun(&home).await;
    let sql = server.sql().await;
    let usage =
        "SELECT coalesce(sum(bytes), 0)::bigint FROM app.blob_usage_parts WHERE tenant_id = 'ann'";
    let before = count(&sql, usage).await;
    ann.pause(&id).await;
    let kept = files(&home);
    assert_eq!(kept.len(), 1);
    let bytes = fs::read(&kept[0]).unwrap();
    let has = |word: &[u8]| bytes.windows(word.len()).any(|part| part == word);
    // A kernel's file begins with words of its own.
    assert!(!has(SECRET.as_bytes()) && !has(b"gvisor"), "it is sealed");
    let row = "SELECT memory || ' ' || kind || ' ' || bytes FROM app.snapshots";
    assert_eq!(texts(&sql, row).await, [format!("true pause {}", bytes.len())]);
    // A few bytes beside them are the run's own texts.
    let bytes = i64::try_from(bytes.len()).unwrap();
    assert!(count(&sql, usage).await >= before + bytes);
    // Another server of the same state directory finds all of it in the file.
    sql.close().await;
    let mut server = server;
    assert!(server.stop().success());
    let server = home.up_with(&[], &[MEMORY]);
    let sql = server.sql().await;
    let ann = Caller { url: server.url.clone(), ..ann };
    let (status, resumed) = ann.resume(&id, files_alone()).await;
    assert_eq!(status, 201, "{resumed}");
    assert_files_alone(&ann, (&id, &text(&resumed, "envdAccessToken"))).await;
    until("the file is erased", SOON, async || {
        count(&sql, "SELECT count(*) FROM app.snapshots WHERE gone_at IS NULL").await == 0
    })
    .await;
    assert_eq!(files(&home), Vec::<PathBuf>::new());
    assert!(count(&sql, usage).await < bytes);
    assert_eq!(ann.api("DELETE", &format!("/sandboxes/{id}"), None).await.0, 204);
    sql.close().await;
    gone(home, server).await;
}

/// It says its process id, a word that only its memory has, and a number that grows.
const COUNTS: &str = "import os, time\nword, n = os.urandom(8).hex(), 0\nwhile True:\n    n += 1\n    \
    open('/tmp/new', 'w').write(f'{os.getpid()} {word} {n}')\n    os.rename('/tmp/new', '/tmp/said')\n    time.sleep(0.01)\n";
/// Whether it is the process of the beginning, and goes on.
const GOES_ON: &str = "a=$(cat /tmp/said); for i in $(seq 100); do b=$(cat /tmp/said); [ \"$a\" != \"$b\" ] && break; sleep 0.05; done
    [ \"${a% *}\" = \"$(cat /tmp/first)\" ] && [ \"${b% *}\" = \"${a% *}\" ] && [ \"$a\" != \"$b\" ] && echo it-goes-on || cat /tmp/first /tmp/said";

#[tokio::test]
async fn a_process_goes_on_with_its_memory_after_each_of_several_pauses() {
    if has_memory() {
        goes_on_by(&[]).await;
    }
}

/// With whatever runsc there is, and however little is known of it.
#[tokio::test]
async fn a_process_goes_on_with_its_memory_where_the_operator_has_it_kept() {
    if has_class("gvisor") {
        goes_on_by(&[MEMORY]).await;
    }
}

async fn goes_on_by(environment: &[(&str, &str)]) {
    const PAUSES: usize = 6;
    let home = Home::new();
    let server = home.up_with(&[], environment);
    let ann = Caller::of(&server, "ann").await.in_class("gvisor");
    let (id, mut token) = ann.create(json!({"templateID": "base", "timeout": 600})).await;
    let script = "nohup python3 -c \"$1\" > /dev/null 2>&1 & until test -e /tmp/said; do sleep 0.05; done; \
                  cut -d ' ' -f 1,2 /tmp/said > /tmp/first";
    ann.started((&id, &token), "sh", &["-c", script, "sh", COUNTS]).await;
    for _ in 0..PAUSES {
        // Each ends registrations with the agent's kernel, which must not come back.
        for _ in 0..4 {
            let said = ann.started((&id, &token), "sh", &["-c", GOES_ON]).await;
            assert!(said.contains(&encoded("it-goes-on\n")), "{said}");
        }
        ann.pause(&id).await;
        let (status, resumed) = ann.resume(&id, json!({"timeout": 600})).await;
        assert_eq!(status, 201, "{resumed}");
        token = text(&resumed, "envdAccessToken");
    }
    let said = ann.started((&id, &token), "sh", &["-c", GOES_ON]).await;
    assert!(said.contains(&encoded("it-goes-on\n")), "{said}");
    let sql = server.sql().await;
    let kept = "SELECT DISTINCT memory::text FROM app.snapshots";
    assert_eq!(texts(&sql, kept).await, ["true"]);
    sql.close().await;
    assert_eq!(ann.api("DELETE", &format!("/sandboxes/{id}"), None).await.0, 204);
    gone(home, server).await;
}

#[tokio::test]
async fn a_damaged_memory_resumes_nothing_and_the_sandbox_stays_paused() {
    if !has_class("gvisor") {
        return;
    }
    let home = Home::new();
    let (server, ann, id) = begun(&home).await;
    ann.pause(&id).await;
    let kept = files(&home).remove(0);
    let mut bytes = fs::read(&kept).unwrap();
    let at = bytes.len() / 2;
    bytes[at] ^= 1;
    fs::write(&kept, &bytes).unwrap();
    let (status, refused) = ann.resume(&id, files_alone()).await;
    assert_eq!(status, 409, "{refused}");
    bytes[at] ^= 1;
    fs::write(&kept, &bytes).unwrap();
    let (status, resumed) = ann.resume(&id, files_alone()).await;
    assert_eq!(status, 201, "{resumed}");
    assert_files_alone(&ann, (&id, &text(&resumed, "envdAccessToken"))).await;
    assert_eq!(ann.api("DELETE", &format!("/sandboxes/{id}"), None).await.0, 204);
    gone(home, server).await;
}

#[tokio::test]
async fn a_server_that_is_killed_around_a_pause_of_memory_leaves_it_done_or_undone() {
    if !has_class("gvisor") {
        return;
    }
    let home = Home::new();
    let (mut done, mut undone) = (0, 0);
    let moments = part(&MOMENTS, 2);
    for wait_ms in moments.iter().copied() {
        let (mut server, ann, id) = begun(&home).await;
        let pause = (format!("/sandboxes/{id}/pause"), json!({}));
        let answer = killed(&mut server, &ann, pause, wait_ms).await;
        let next = Next::of(&home, &id).await;
        let ann = &next.ann;
        match next.state.as_str() {
            "paused" => {
                done += 1;
                let (status, resumed) = ann.resume(&id, files_alone()).await;
                assert_eq!(status, 201, "{resumed}");
                assert_files_alone(ann, (&id, &text(&resumed, "envdAccessToken"))).await;
                assert_eq!(ann.api("DELETE", &format!("/sandboxes/{id}"), None).await.0, 204);
            }
            _ => {
                undone += 1;
                assert_ne!(answer, 204, "what was acknowledged is kept");
            }
        }
        erased(&home).await;
        next.stop().await;
    }
    assert!(undone > 0 && done + undone == moments.len(), "{done} {undone}");
    let server = home.up_with(&[], &[MEMORY]);
    gone(home, server).await;
}

/// Its last life may still be wiped then, which takes a moment in this class.
#[tokio::test]
async fn what_is_shown_as_paused_is_resumed_at_once() {
    for class in ["gvisor", "microvm"].into_iter().filter(|class| has_class(class)) {
        resumed_at_once(class).await;
    }
}

async fn resumed_at_once(class: &'static str) {
    let home = Home::new();
    let server = home.up();
    let ann = Caller::of(&server, "ann").await.in_class(class);
    let (id, _) = ann.create(json!({"templateID": "base", "timeout": 300})).await;
    for _ in 0..3 {
        let pause = format!("/sandboxes/{id}/pause");
        let resumed = async {
            loop {
                let (_, view) = ann.api("GET", &format!("/sandboxes/{id}"), None).await;
                if view["state"] == "paused" {
                    let body = json!({"timeout": 300});
                    return ann.api("POST", &format!("/sandboxes/{id}/resume"), Some(body)).await;
                }
            }
        };
        let (_paused, (status, resumed)) = tokio::join!(ann.api("POST", &pause, None), resumed);
        assert_eq!(status, 201, "{resumed}");
    }
    assert_eq!(ann.api("DELETE", &format!("/sandboxes/{id}"), None).await.0, 204);
    gone(home, server).await;
}

/// Granted names are reached after a pause too, and no other name is.
#[tokio::test]
async fn names_are_reached_before_and_after_a_pause_in_every_class() {
    for class in ["gvisor", "microvm"].into_iter().filter(|class| has_class(class)) {
        names_reached(class).await;
    }
}

async fn names_reached(class: &'static str) {
    let home = Home::new();
    let (address, _) = greeter();
    let table = ["a", "b"].map(|name| format!("--egress-host={name}.example={address}"));
    let server = home.up_with(&[&table[0], &table[1]], &[]);
    let ann = Caller::of(&server, "ann").await.in_class(class);
    let sql = server.sql().await;
    let list = "INSERT INTO app.dynamic_config (key, version, value, actor) VALUES ('egress.exec.allowed', 1, '[\"a.example\"]', 'sec')";
    sqlx::query(list).execute(&sql).await.unwrap();
    let network = json!({"allowOut": ["a.example"]});
    let body = json!({"templateID": "base", "timeout": 300, "network": network});
    let (id, mut token) = ann.create(body).await;
    let reach = "for name in a b; do curl -sf http://$name.example/ || echo no; done";
    for _ in 0..2 {
        let said = ann
            .started((&id, &token), "sh", &["-c", &format!("({reach}) > /tmp/now; cat /tmp/now")])
            .await;
        assert!(said.contains(&encoded("hello\nno\n")), "{said}");
        ann.pause(&id).await;
        let (status, resumed) = ann.resume(&id, json!({"timeout": 60})).await;
        assert_eq!(status, 201, "{resumed}");
        token = text(&resumed, "envdAccessToken");
    }
    assert_eq!(ann.api("DELETE", &format!("/sandboxes/{id}"), None).await.0, 204);
    sql.close().await;
    gone(home, server).await;
}

/// A runsc that restores nothing, as another version of it would refuse an image.
#[tokio::test]
async fn a_memory_that_does_not_start_leaves_its_sandbox_paused_and_its_files_usable() {
    if !has_class("gvisor") {
        return;
    }
    let home = Home::new();
    let bin = home.path().join("bin");
    fs::create_dir(&bin).unwrap();
    let real = std::env::split_paths(&std::env::var_os("PATH").unwrap())
        .map(|dir| dir.join("runsc"))
        .find(|path| path.is_file())
        .unwrap();
    let script = format!(
        "#!/bin/sh\ncase \" $* \" in *\" restore \"*) echo 'another version' >&2; exit 1;; esac\nexec {} \"$@\"\n",
        real.display()
    );
    write_program(&bin.join("runsc"), &script);
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let server = home.up_with(&[], &[("PATH", &path), MEMORY]);
    let ann = Caller::of(&server, "ann").await.in_class("gvisor");
    let (id, token) = ann.create(json!({"templateID": "base", "timeout": 300})).await;
    begin(&ann, (&id, &token)).await;
    ann.pause(&id).await;
    let (status, refused) = ann.resume(&id, json!({"timeout": 60})).await;
    let why = refused["message"].as_str().unwrap();
    assert!(
        status == 409 && why.contains("stays paused") && why.contains("another version"),
        "{refused}"
    );
    let (status, resumed) = ann.resume(&id, files_alone()).await;
    assert_eq!(status, 201, "{resumed}");
    assert_files_alone(&ann, (&id, &text(&resumed, "envdAccessToken"))).await;
    assert_eq!(ann.api("DELETE", &format!("/sandboxes/{id}"), None).await.0, 204);
    gone(home, server).await;
}

/// Its files are there, and its process is not.
async fn assert_files_alone(ann: &Caller, at: (&str, &str)) {
    let said = ann.started(at, "sh", &["-c", "test -e /tmp/up && echo it-is-up"]).await;
    assert!(said.contains(&encoded("it-is-up\n")), "{said}");
    assert!(!runs(ann, at).await);
}
