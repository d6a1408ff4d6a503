//! In each class: a secret is used from inside, and nothing that the sandbox is made of holds it.
//!
//! ```text
//! container        its processes            gvisor   sentry, gofers, stubs, and the memory file of its tasks
//! docker           its processes            microvm  the monitor, whose memory is the machine's
//! ```
//! The task makes a mark in its own memory that no text of the run has. A scan that does not find the mark proves nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use cofferdam_tests::not_run::not_run;
use cofferdam_tests::{Home, text};
use serde_json::json;

use super::forge::{Forge, VALUE};
use super::{PATIENT, bearer, ended, scan, set};
use crate::support::{assert_proven, assert_wiped, texts, until};

/// The mark as the task's memory has it, and backwards, as the recipe does.
const MARK: &str = "a-mark-that-only-the-memory-of-the-task-holds";

/// Uses the secret, then waits with the mark in memory.
fn script() -> String {
    let backwards: String = MARK.chars().rev().collect();
    format!(
        "cd /work; cat > hold.py <<'PY'\nimport http.client, os, ssl, time\n\
         mark = bytes(reversed(b'{backwards}')) * 64\n\
         c = http.client.HTTPSConnection('git.example', context=ssl.create_default_context())\n\
         for path in ('/one', '/two'):\n    c.request('GET', path)\n    print(c.getresponse().read().decode(), end='')\n\
         while True:\n    c.request('GET', '/end')\n    if b'over' in c.getresponse().read(): break\n    time.sleep(0.2)\n\
         print(len(mark))\nPY\n\
         exec /usr/bin/python3 hold.py"
    )
}

/// The processes of this host that a sandbox is made of: by its id in their command line or their cgroup, and all that they
/// started.
fn of(names: &[String]) -> BTreeMap<i32, String> {
    let mut parents = BTreeMap::new();
    let mut found = BTreeMap::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let Ok(pid) = entry.file_name().to_string_lossy().parse::<i32>() else { continue };
        let of = |name: &str| {
            let bytes = fs::read(entry.path().join(name)).unwrap_or_default();
            String::from_utf8_lossy(&bytes).replace('\0', " ")
        };
        let (line, stat) = (of("cmdline"), of("stat"));
        let after = stat.rsplit_once(") ").map_or("", |(_, after)| after);
        let parent = after.split(' ').nth(1).and_then(|ppid| ppid.parse::<i32>().ok());
        parents.insert(pid, (parent.unwrap_or(0), line.clone()));
        let cgroup = of("cgroup");
        if names.iter().any(|name| line.contains(name) || cgroup.contains(name)) {
            found.insert(pid, line);
        }
    }
    loop {
        let more: Vec<i32> = parents
            .iter()
            .filter(|(pid, (ppid, _))| found.contains_key(ppid) && !found.contains_key(pid))
            .map(|(pid, _)| *pid)
            .collect();
        if more.is_empty() {
            return found;
        }
        found.extend(more.into_iter().map(|pid| (pid, parents[&pid].1.clone())));
    }
}

/// An engine's own name of a sandbox's container, which its cgroup has.
fn in_docker(class: &str, sandbox: &str) -> Vec<String> {
    if class != "docker" {
        return Vec::new();
    }
    let filter = format!("name={sandbox}");
    let args = ["ps", "-q", "--no-trunc", "--filter", &filter];
    let said = Command::new("docker").args(args).output().expect("the engine's client");
    String::from_utf8(said.stdout).unwrap().lines().map(str::to_owned).collect()
}

/// Where the needles are in the memory of these processes, and in files of memory that they hold open.
fn in_memory(processes: &BTreeMap<i32, String>, needles: &[Vec<u8>]) -> Vec<String> {
    let mut found = Vec::new();
    let mut seen = BTreeSet::new();
    for pid in processes.keys() {
        found.extend(scan::in_process(*pid, needles));
        found.extend(scan::in_memory_files(*pid, needles, &mut seen));
    }
    found
}

async fn holds_no_secret(class: &str, args: &[&str]) {
    let forge = Forge::start();
    let home = Home::new();
    let doctor = home.run_json(&["doctor", "--json"]);
    if doctor["classes"][class] != true {
        not_run(&format!("the class {class}"), &doctor["classNotes"][class].to_string());
        return;
    }
    let log = home.path().join("server.log");
    let up = forge.up_as(&home, args, "trace", Stdio::from(File::create(&log).unwrap()));
    set(&home, &[], &format!("{VALUE}\n"));
    let mut task = json!({
        "name": "t",
        "exec": {"run": script(), "timeout": "270s", "egress": ["git.example"], "secrets": [bearer("git.example")]},
        "limits": {"mem_mb": 256, "disk_mb": 32, "pids": 64},
    });
    if !["container", "docker"].contains(&class) {
        task["isolation"] = json!({"class_min": class});
    }
    let recipe = json!({"id": "secret", "v": "1", "plan": {"tasks": [task]}}).to_string();
    let run = text(&up.run_recipe(&recipe, json!({}), json!({})).await, "runId");
    until("the secret was used twice", PATIENT, async || {
        forge.heard().iter().any(|one| one.path == "/two")
    })
    .await;
    let sql = up.sql().await;
    let session =
        "SELECT sandbox_id || ' ' || runtime || ' ' || class FROM app.remote_execution_sessions";
    let sessions = texts(&sql, session).await;
    let [session] = sessions.as_slice() else { panic!("{sessions:?}") };
    let words: Vec<&str> = session.split(' ').collect();
    let (sandbox, of_class) = (words[0], [words[1], words[2]]);
    assert!(of_class.contains(&class), "{session}");
    let processes = of(&[vec![sandbox.to_owned()], in_docker(class, sandbox)].concat());
    assert!(!processes.keys().any(|pid| *pid == up.pid()), "{processes:?}");
    let mark = in_memory(&processes, &[MARK.as_bytes().to_vec()]);
    assert!(!mark.is_empty(), "a scan that sees nothing: {processes:#?}");
    let needles = scan::forms(VALUE);
    assert_eq!(in_memory(&processes, &needles), Vec::<String>::new(), "{processes:#?}");
    // Its files, as its worker sees them, and the logs and sockets beside them.
    let root = PathBuf::from(format!("/proc/{}/root", up.pid()));
    let state = home.path().canonicalize().unwrap();
    let inside = root.join(state.strip_prefix("/").unwrap());
    let none = Vec::<PathBuf>::new();
    assert_eq!(scan::in_files(&inside, &needles), none, "files of the worker");
    forge.go();
    let (header, out, violations) = ended(&up, &run).await;
    let end = "SELECT response::text FROM app.sbx_runs";
    let end = texts(&sql, end).await;
    assert_eq!(
        (&header["status"], &violations),
        (&json!("succeeded"), &json!([])),
        "{out} {end:?}"
    );
    assert!(scan::in_rows(&sql, &needles).await.is_empty(), "rows hold it");
    assert_wiped(&home, &sql).await;
    drop(sql);
    drop(up);
    assert_proven(&home);
    assert!(fs::read_to_string(&log).unwrap().contains("secret"), "the log is the server's");
    assert_eq!(scan::in_files(home.path(), &needles), none);
}

#[tokio::test(flavor = "multi_thread")]
async fn in_a_container_nothing_holds_a_secret_that_its_task_uses() {
    holds_no_secret("container", &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn in_gvisor_nothing_holds_a_secret_that_its_task_uses() {
    holds_no_secret("gvisor", &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn in_a_machine_nothing_holds_a_secret_that_its_task_uses() {
    holds_no_secret("microvm", &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn in_docker_nothing_holds_a_secret_that_its_task_uses() {
    holds_no_secret("docker", &["--runtime", "docker"]).await;
}
