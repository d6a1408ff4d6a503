//! The command line as scripts see it: exit codes, one object on stdout, words on stderr, no secrets.
//!
//! One file: what holds for every command is asked of one list of commands.

use crate::support;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::Output;
use std::time::Duration;

use cofferdam_tests::{Home, processes_mentioning};
use serde_json::{Value, json};
use support::{code, ended, recipe, said, stdout};

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// The one JSON object on stdout, and nothing besides.
fn object(output: &Output) -> Value {
    let text = stdout(output);
    assert_eq!(text.trim_end().lines().count(), 1, "one line: {}", said(output));
    let value: Value =
        serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {}", said(output)));
    assert!(value.is_object(), "{value}");
    value
}

fn no_ansi(output: &Output) {
    assert!(!output.stdout.contains(&0x1b), "colour in a pipe: {}", said(output));
    assert!(!output.stderr.contains(&0x1b), "colour in a pipe: {}", said(output));
}

const FAILING: &str = "id: failing\nv: \"1\"\nplan:\n  tasks:\n    - name: no\n      exec: {run: \"echo out; echo err >&2; exit 4\", timeout: 30s}\n";

#[test]
fn a_run_prints_one_object_and_its_words_elsewhere() {
    let home = Home::new();
    let output = home.run(&["run", "examples/hello.yaml", "--json"]);
    assert_eq!(code(&output), 0, "{}", said(&output));
    no_ansi(&output);
    let run = object(&output);
    assert!(run["runId"].as_str().unwrap().starts_with("rn_"));
    assert!(run["workflowID"].as_str().unwrap().starts_with("ih_"));
    assert_eq!(run["status"], "succeeded");
    let kinds: Vec<&str> =
        run["artifacts"].as_array().unwrap().iter().map(|a| a["kind"].as_str().unwrap()).collect();
    for kind in ["plan_card", "artifact_index", "stdout", "stderr", "timings", "raw"] {
        assert!(kinds.contains(&kind), "{kind} in {kinds:?}");
    }
    let wipe = run["wipe"].as_array().unwrap();
    assert_eq!(wipe.len(), 1);
    assert_eq!((&wipe[0]["state"], &wipe[0]["status"]), (&json!("COMPLETED"), &json!("verified")));
    let plain = home.run(&["run", "examples/hello.yaml"]);
    assert_eq!(code(&plain), 0, "{}", said(&plain));
    no_ansi(&plain);
    assert!(stdout(&plain).contains("hello from"), "the only task's output: {}", said(&plain));
    assert!(stderr(&plain).contains("ok hello"), "progress: {}", said(&plain));
}

#[test]
fn a_failed_run_exits_1_and_says_why() {
    let home = Home::new();
    let file = recipe(home.path(), "failing.yaml", FAILING);
    let output = home.run(&["run", &file, "--json"]);
    assert_eq!(code(&output), 1, "{}", said(&output));
    let run = object(&output);
    assert_eq!(run["status"], "failed");
    assert!(run["error"].as_str().unwrap().contains("CMD_NONZERO"), "{run}");
    let output = home.run(&["run", &file]);
    assert_eq!(code(&output), 1);
    assert!(
        stderr(&output).contains("FAILED no") && stderr(&output).contains("CMD_NONZERO"),
        "{}",
        said(&output)
    );
}

#[test]
fn wrong_usage_exits_3_and_touches_nothing() {
    let home = Home::empty();
    let cases: &[&[&str]] = &[
        &["frobnicate"],
        &["run"],
        &["run", "examples/hello.yaml", "--no-such-flag"],
        &["run", "examples/value.yaml", "-i", "no-equals-sign"],
        &["run", "examples/value.yaml", "-i", "text=1", "-i", "text=2"],
        &["run", "examples/value.yaml", "-i", "txet=1"],
        &["run", "examples/hello.yaml", "-i", "text=1"],
        &["exec"],
        &["gate", "reply", "rn_0", "g", "--choice", "maybe"],
        &["up", "--listen", "not-an-address"],
        &["schema", "no-such-schema"],
        &["ps", "--limit", "many"],
    ];
    for args in cases {
        let output = home.run(args);
        assert_eq!(code(&output), 3, "{args:?}: {}", said(&output));
        assert!(
            output.stdout.is_empty() && !output.stderr.is_empty(),
            "{args:?}: {}",
            said(&output)
        );
        no_ansi(&output);
    }
    let left: Vec<String> = support::names(home.path());
    assert!(left.is_empty(), "nothing was started: {left:?}");
    for args in [&["--help"][..], &["run", "--help"], &["--version"]] {
        let output = home.run(args);
        assert_eq!(code(&output), 0, "{args:?}");
        assert!(!output.stdout.is_empty());
    }
    assert!(stdout(&home.run(&["--help"])).contains("Exit codes"), "the codes are documented");
}

#[test]
fn a_bad_recipe_is_named_by_file_line_and_field_before_anything_starts() {
    let home = Home::empty();
    let missing = home.run(&["run", "no/such/recipe.yaml"]);
    assert_eq!(code(&missing), 2, "{}", said(&missing));
    assert!(stderr(&missing).contains("no/such/recipe.yaml"), "{}", said(&missing));
    let cases = [
        (
            "unknown.yaml",
            "id: x\nv: \"1\"\nplan:\n  tasks:\n    - name: a\n      exec: {run: \"true\"}\n      speed: 9\n",
            ":7",
            "speed",
        ),
        (
            "typed.yaml",
            "id: x\nv: \"1\"\nplan:\n  tasks:\n    - name: a\n      exec: {run: \"true\"}\n      limits: {cpu: many}\n",
            ":7:21",
            "",
        ),
        ("syntax.yaml", "id: x\nv: \"1\"\nplan: {tasks: [\n", ":", ""),
        (
            "both.yaml",
            "id: x\nv: \"1\"\nplan:\n  tasks:\n    - {name: a, value: v, exec: {run: \"true\"}}\n",
            ":5:27",
            "plan.tasks[0].exec",
        ),
        (
            "time.yaml",
            "id: x\nv: \"1\"\nplan:\n  tasks:\n    - {name: a, exec: {run: \"true\", timeout: soon}}\n",
            ":5:37",
            "timeout",
        ),
    ];
    for (name, yaml, at, field) in cases {
        let file = recipe(home.path(), name, yaml);
        let output = home.run(&["run", &file, "--json"]);
        assert_eq!(code(&output), 2, "{name}: {}", said(&output));
        let text = stderr(&output);
        assert!(text.contains(&format!("{name}{at}")) && text.contains(field), "{name}: {text}");
        assert!(output.stdout.is_empty());
    }
    assert!(!home.path().join("database").exists(), "no database was started for it");
    let output = home.run(&["run", "examples/value.yaml", "-i", "txet=1"]);
    assert_eq!(code(&output), 3, "an input that the form does not know: {}", said(&output));
    let words = stderr(&output);
    assert!(words.contains("-i txet") && words.contains("takes text"), "{}", said(&output));
}

#[test]
fn a_detached_run_prints_its_ids_at_once_and_waits_for_a_worker() {
    let home = Home::new();
    let output = home.run(&["run", "examples/hello.yaml", "--detach", "--json"]);
    assert_eq!(code(&output), 0, "{}", said(&output));
    let ids = object(&output);
    assert_eq!(ids["status"], "queued");
    let id = ids["runId"].as_str().unwrap();
    assert_eq!(home.run_json(&["show", id, "--json"])["status"], "queued");
    let plain = home.run(&["run", "examples/hello.yaml", "--detach"]);
    assert!(
        stdout(&plain).trim().starts_with("rn_") && stdout(&plain).lines().count() == 1,
        "{}",
        said(&plain)
    );
    let same: Vec<Output> = (0..2)
        .map(|_| home.run(&["run", "examples/hello.yaml", "--detach", "--run-key", "nightly"]))
        .collect();
    assert_eq!(stdout(&same[0]), stdout(&same[1]), "equal starts with equal keys are one run");
}

#[test]
fn proofs_as_json_have_name_claim_and_rows() {
    let home = Home::new();
    let report = home.run_json(&["prove", "--json"]);
    assert_eq!(report["verdict"], "GO");
    let proofs = report["proofs"].as_array().unwrap();
    assert!(proofs.len() >= 20);
    for proof in proofs {
        assert!(proof["name"].is_string() && proof["claim"].is_string(), "{proof}");
        assert_eq!(proof["rows"], json!([]));
    }
    let plain = home.run(&["prove"]);
    assert_eq!(stdout(&plain).lines().last(), Some("GO"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_prints_its_address_first_and_nothing_else_that_a_script_reads() {
    let home = Home::new();
    let mut child = home
        .command(&["up", "--listen", "127.0.0.1:0"])
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let mut out = std::io::BufReader::new(child.stdout.take().unwrap());
    let mut first = String::new();
    std::io::BufRead::read_line(&mut out, &mut first).unwrap();
    let address = first.trim().strip_prefix("http://127.0.0.1:").expect(&first);
    assert!(address.parse::<u16>().is_ok_and(|port| port > 0), "{first}");
    support::signal(i32::try_from(child.id()).unwrap(), nix::sys::signal::Signal::SIGTERM);
    let mut rest = String::new();
    std::io::Read::read_to_string(&mut out, &mut rest).unwrap();
    assert_eq!(rest, "");
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_is_listed_shown_logged_gated_canceled_resumed_retried_and_forked() {
    let home = Home::new();
    let up = home.up();
    let detached = |args: &[&str]| {
        let mut all = vec!["run"];
        all.extend(args);
        all.extend(["--detach", "--json"]);
        home.run_json(&all)["runId"].as_str().unwrap().to_owned()
    };
    // A gate: listed, shown, answered, once.
    let gated = detached(&["examples/hello-gated.yaml"]);
    up.wait_for(&gated, "waiting", |h| h["status"] == "waiting_input").await;
    let inbox = home.run_json(&["gate", "ls", "--json"]);
    assert_eq!(inbox["gates"][0]["runId"], json!(gated), "{inbox}");
    assert!(stdout(&home.run(&["gate", "ls"])).contains(&gated));
    let shown = home.run_json(&["gate", "show", &gated, "--json"]);
    assert_eq!(
        (&shown["gates"][0]["gateKey"], &shown["gates"][0]["state"]),
        (&json!("approve-plan"), &json!("PENDING"))
    );
    let reply = |choice: &str| {
        home.run(&[
            "gate",
            "reply",
            &gated,
            "approve-plan",
            "--choice",
            choice,
            "--dedupe-key",
            "k",
            "--rationale",
            "seen",
        ])
    };
    assert_eq!(stdout(&reply("yes")), "accepted\n");
    up.wait_terminal(&gated).await;
    assert_eq!(stdout(&reply("yes")), "replayed: this reply was there already\n");
    assert_eq!(code(&reply("no")), 1, "another answer under the same key is a no");
    assert!(stdout(&home.run(&["gate", "show", &gated])).contains("yes"));
    assert_eq!(code(&home.run(&["gate", "show", "rn_00000000000000000000000000000000"])), 1);

    assert_listed(&home, &gated);

    // Canceled, resumed, and then to its end.
    let slow = "id: slow\nv: \"1\"\nplan:\n  gate: approve-plan\n  tasks:\n    - {name: t, exec: {run: \"echo t\", timeout: 30s}}\n";
    let slow = detached(&[&recipe(home.path(), "slow.yaml", slow)]);
    up.wait_for(&slow, "waiting", |h| h["status"] == "waiting_input").await;
    let canceled = home.run(&["cancel", &slow, "--reason", "changed my mind"]);
    assert_eq!(code(&canceled), 0, "{}", said(&canceled));
    up.wait_for(&slow, "canceled", |h| h["status"] == "canceled").await;
    assert_eq!(code(&home.run(&["cancel", &slow])), 1, "a canceled run cannot be canceled");
    assert_eq!(code(&home.run(&["resume", &gated])), 1, "a finished run cannot be resumed");
    let resumed = home.run(&["resume", &slow]);
    assert_eq!(code(&resumed), 0, "{}", said(&resumed));
    up.wait_for(&slow, "waiting again", |h| h["status"] == "waiting_input").await;
    let agreed = home.run(&["gate", "reply", &slow, "approve-plan", "--choice", "yes", "--json"]);
    assert_eq!(object(&agreed)["ok"], true);
    assert_eq!(up.wait_terminal(&slow).await["status"], "succeeded");

    // Retried, which is the same run, and forked, which is a new one.
    let failing = detached(&[&recipe(home.path(), "failing.yaml", FAILING)]);
    assert_eq!(up.wait_terminal(&failing).await["status"], "failed");
    let retried = stdout(&home.run(&["retry", &failing])).trim().to_owned();
    assert_eq!(retried, failing);
    assert_eq!(up.wait_terminal(&retried).await["status"], "failed");
    assert_eq!(code(&home.run(&["retry", &gated])), 1, "a success is not retried");
    let forked = home.run(&["fork", &slow, "--step", "0", "--json"]);
    assert_eq!(code(&forked), 0, "{}", said(&forked));
    let forked = object(&forked)["newRunId"].as_str().unwrap().to_owned();
    up.wait_for(&forked, "waiting", |h| h["status"] == "waiting_input").await;
    assert_eq!(code(&home.run(&["gate", "reply", &forked, "approve-plan", "--choice", "yes"])), 0);
    assert_eq!(up.wait_terminal(&forked).await["status"], "succeeded");
    assert_eq!(code(&home.run(&["fork", &slow, "--step", "4000"])), 1, "no such step");
    support::assert_proven(&home);
}

fn assert_listed(home: &Home, gated: &str) {
    let runs = home.run_json(&["ps", "--json"]);
    assert_eq!(runs["runs"][0]["runId"], json!(gated), "{runs}");
    assert_eq!(home.run_json(&["ps", "--json", "--status", "failed"])["runs"], json!([]));
    let table = home.run(&["ps"]);
    no_ansi(&table);
    assert!(stdout(&table).starts_with("RUN ") && stdout(&table).contains("succeeded"));
    let show = stdout(&home.run(&["show", gated]));
    let has_task = show.lines().any(|line| line.starts_with("hello "));
    assert!(has_task && show.contains("verified"), "{show}");
    assert!(!show.contains("ExecuteST:") && !show.contains("stderr.log"), "{show}");
    assert!(show.contains("1 empty log is left out"), "{show}");
    assert_eq!(stdout(&home.run(&["logs", gated])), "hello, with consent\n");
    assert_eq!(code(&home.run(&["show", "rn_00000000000000000000000000000000"])), 1);
    assert_eq!(code(&home.run(&["logs", "rn_00000000000000000000000000000000"])), 1);
}

#[test]
fn exec_passes_output_and_status_through() {
    let home = Home::new();
    let output = home.run(&["exec", "--", "sh", "-c", "echo hi; echo oops >&2; exit 7"]);
    assert_eq!(code(&output), 7, "{}", said(&output));
    assert_eq!(stdout(&output), "hi\n");
    assert!(stderr(&output).contains("oops"), "{}", said(&output));
    no_ansi(&output);
    let output = home.run(&["exec", "--", "printf", "%s", "no newline, ${literally}"]);
    assert_eq!(
        (code(&output), stdout(&output)),
        (0, "no newline, ${literally}".into()),
        "{}",
        said(&output)
    );
    let output = home.run(&["exec", "--timeout", "1", "--", "sleep", "60"]);
    assert_eq!(code(&output), 137, "as a shell says of a killed command: {}", said(&output));
    assert!(stderr(&output).contains("TIMEOUT"), "{}", said(&output));
    let output = home.run(&["exec", "--json", "--", "false"]);
    assert_eq!(code(&output), 1);
    assert_eq!(object(&output)["status"], "failed");
    let given = tempfile::tempdir().unwrap();
    fs::write(given.path().join("in.txt"), "given").unwrap();
    let work = given.path().to_str().unwrap();
    let output = home.run(&[
        "exec",
        "--work",
        work,
        "--keep",
        "out.txt",
        "--json",
        "--",
        "sh",
        "-c",
        "cat in.txt > out.txt",
    ]);
    assert_eq!(code(&output), 0, "{}", said(&output));
    let kept = object(&output)["artifacts"]
        .as_array()
        .unwrap()
        .iter()
        .any(|a| a["name"] == "files/out.txt");
    assert!(kept, "{}", said(&output));
    assert!(
        !given.path().join("out.txt").exists(),
        "copy on write: the host's directory is as it was"
    );
}

#[test]
fn completions_schemas_and_the_openapi_document_need_no_server() {
    let home = Home::empty();
    for shell in ["bash", "zsh", "fish"] {
        let output = home.run(&["completions", shell]);
        assert_eq!(code(&output), 0);
        assert!(stdout(&output).contains("cofferdam") && stdout(&output).len() > 1000, "{shell}");
    }
    let listed = stdout(&home.run(&["schema"]));
    assert!(listed.lines().any(|l| l == "recipe") && listed.lines().count() >= 10, "{listed}");
    for name in listed.lines() {
        let schema: Value = serde_json::from_str(&stdout(&home.run(&["schema", name]))).unwrap();
        assert!(schema.is_object(), "{name}");
    }
    let document: Value = serde_json::from_str(&stdout(&home.run(&["openapi"]))).unwrap();
    assert!(document["openapi"].as_str().unwrap().starts_with("3."));
    assert!(support::names(home.path()).is_empty(), "nothing was started");
}

#[test]
fn doctor_says_what_this_host_can_isolate() {
    let home = Home::new();
    let output = home.run(&["doctor", "--json"]);
    let found = object(&output);
    assert_eq!(code(&output), 0, "{}", said(&output));
    assert_eq!(found["classes"]["container"], true);
    assert!(
        found["runtime"].as_str().unwrap().starts_with('/') && found["weak"].is_array(),
        "{found}"
    );
    for id in ["overlay", "cgroup.controllers", "seccomp", "swap", "kvm", "disk", "memory"] {
        let all = found["findings"].as_array().unwrap();
        assert!(all.iter().any(|finding| finding["id"] == id), "{id}: {found}");
    }
    assert_eq!(found["probes"], Value::Null, "nobody asked for probes");
    // The container class always has a weak point: its kernel is the host's.
    assert_eq!(code(&home.run(&["doctor", "--strict"])), 1);
    assert!(stdout(&home.run(&["doctor"])).contains("container"));
}

#[test]
fn doctor_tries_to_escape_and_attests_what_it_saw() {
    let home = Home::new();
    let output = home.run(&["doctor", "--probe", "--json"]);
    assert_eq!(code(&output), 0, "{}", said(&output));
    let found = object(&output);
    let runtimes = found["probes"].as_array().unwrap();
    assert!(!runtimes.is_empty(), "{found}");
    for runtime in runtimes {
        assert_eq!(runtime["holds"], true, "{runtime}");
        let probes = runtime["probes"].as_array().unwrap();
        assert!(probes.len() >= 40 && probes.iter().all(|probe| probe["ok"] == true));
        let wipes = runtime["wipes"].as_array().unwrap();
        assert!(wipes.len() >= 2 && wipes.iter().all(|wipe| wipe["status"] == "verified"));
    }
    let text = stdout(&home.run(&["doctor", "--attest"]));
    let (_, apart) = text.split_once("## Hardware isolation, and what was tried\n").unwrap();
    let container = apart.lines().find(|line| line.starts_with("| container | ")).unwrap();
    assert!(container.contains("| not hardware isolation | held, "), "{container}");
    for line in ["# Isolation attestation", "- [x] every probe answered", "| yes | `net.metadata`"]
    {
        assert!(text.contains(line), "{line}: {text}");
    }
    let left: Vec<_> = std::fs::read_dir(home.path())
        .unwrap()
        .flatten()
        .filter(|entry| entry.file_name().to_string_lossy().starts_with("doctor."))
        .collect();
    assert!(left.is_empty(), "{left:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn no_secret_is_in_a_command_line_or_in_the_log() {
    let home = Home::new();
    let output = home.run(&["-vv", "run", "examples/hello.yaml", "--json"]);
    assert_eq!(code(&output), 0, "{}", said(&output));
    let file = home.path().join("admin.key");
    let meta = file.metadata().unwrap();
    assert_eq!(
        (meta.permissions().mode() & 0o7777, meta.uid()),
        (0o600, nix::unistd::geteuid().as_raw())
    );
    let key = fs::read_to_string(&file).unwrap().trim().to_owned();
    assert!(key.len() >= 40, "{}", key.len());
    let secret = key.trim_start_matches("cfd_");
    assert!(
        !output.stderr.is_empty() && !stderr(&output).contains(secret),
        "the key is in the log"
    );
    let log = home.path().join("up.log");
    let mut child = home
        .command(&["-vv", "up", "--listen", "127.0.0.1:0"])
        .stdout(std::process::Stdio::null())
        .stderr(fs::File::create(&log).unwrap())
        .spawn()
        .unwrap();
    support::until("it is up", Duration::from_secs(30), async || {
        home.path().join("endpoint.json").exists()
    })
    .await;
    let made = home.run_json(&["key", "create", "--tenant", "acme", "--role", "auditor", "--json"]);
    let other = made["key"].as_str().unwrap();
    assert_eq!(code(&home.run(&["run", "examples/hello.yaml"])), 0);
    assert!(processes_mentioning(secret).is_empty() && processes_mentioning(other).is_empty());
    support::signal(i32::try_from(child.id()).unwrap(), nix::sys::signal::Signal::SIGTERM);
    child.wait().unwrap();
    let log = fs::read_to_string(log).unwrap();
    assert!(log.len() > 1000, "-vv says a lot: {}", log.len());
    for secret in [secret, other.trim_start_matches("cfd_")] {
        assert!(!log.contains(secret), "a key is in the server's log");
    }
    let database = fs::read_to_string(home.path().join("database/log")).unwrap_or_default();
    assert!(!database.contains(secret), "a key is in the database's log");
    let listed = home.run(&["key", "ls", "--json"]);
    assert!(!stdout(&listed).contains(secret), "{}", said(&listed));
    assert_eq!(code(&home.run(&["key", "revoke", "k_0000000000000000"])), 1);
}

/// A project of two test modules, split over two sandboxes by `$SHARD`.
#[test]
fn a_projects_tests_are_split_over_shards() {
    let home = Home::new();
    let project = tempfile::tempdir().unwrap();
    let repo = project.path();
    for shard in 0..2 {
        let module = format!(
            "import os, unittest\n\nclass Test(unittest.TestCase):\n    def test_shard(self):\n        self.assertEqual(os.environ['SHARD'], '{shard}')\n        self.assertEqual(os.environ['SHARDS'], '2')\n        open('report.xml', 'w').write('<shard n=\"{shard}\"/>')\n"
        );
        fs::write(repo.join(format!("test_part_{shard}.py")), module).unwrap();
    }
    let repo_input = format!("repo={}", repo.display());
    let args = |cmd: &'static str| {
        vec![
            "run",
            "examples/tests.yaml",
            "-i",
            &repo_input,
            "-i",
            cmd,
            "-i",
            "shards=2",
            "--yes",
            "--json",
        ]
    };
    let output = ended(
        home.command(&args("cmd=python3 -m unittest -q test_part_$SHARD")),
        Duration::from_secs(120),
    );
    assert_eq!(code(&output), 0, "{}", said(&output));
    let run = object(&output);
    let reports: Vec<&Value> = run["artifacts"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|a| a["name"] == "files/report.xml")
        .collect();
    assert_eq!(reports.len(), 2, "{run}");
    assert_ne!(reports[0]["sha256"], reports[1]["sha256"]);
    assert_eq!(run["wipe"].as_array().unwrap().len(), 2);
    assert!(!repo.join("report.xml").exists(), "the project itself is as it was");
    // The same tests on the wrong shard fail, and so does the run.
    let output = ended(
        home.command(&args("cmd=python3 -m unittest -q test_part_0")),
        Duration::from_secs(120),
    );
    assert_eq!(code(&output), 1, "{}", said(&output));
    let steps = object(&output)["steps"].clone();
    let failed: Vec<&str> = steps
        .as_array()
        .unwrap()
        .iter()
        .filter(|s| s["status"] == "failed" && s["taskKey"].is_string())
        .map(|s| s["stepId"].as_str().unwrap())
        .collect();
    assert_eq!(failed, ["ExecuteST:shard-1"], "{steps}");
    // Without --yes and without anybody to ask, it waits and says how to answer.
    let detached = home.run(&["run", "examples/tests.yaml", "-i", &repo_input, "--detach"]);
    assert_eq!(code(&detached), 0, "{}", said(&detached));
}

#[test]
fn a_failed_run_shows_the_end_of_its_failed_tasks_stderr_and_names_where_the_rest_is() {
    let home = Home::new();
    let text = "id: loud\nv: \"1\"\nplan:\n  tasks:\n    - name: fine\n      exec: {run: \"echo quiet >&2\", timeout: 30s}\n    - name: loud\n      exec: {run: \"for i in $(seq 30); do echo said $i >&2; done; printf '\\\\033[2Jend\\\\n' >&2; exit 3\", timeout: 30s}\n";
    let path = home.path().join("loud.yaml");
    std::fs::write(&path, text).unwrap();
    let ran = home.run(&["run", path.to_str().unwrap(), "--yes"]);
    assert!(!ran.status.success());
    let runs = home.run_json(&["ps", "--json"]);
    let shown = home.run(&["show", runs["runs"][0]["runId"].as_str().unwrap()]);
    for output in [ran, shown] {
        let words = said(&output);
        for part in [
            "stderr of loud, its last lines (cofferdam logs ",
            "said 22\n",
            "said 30\n",
            "\\x1b[2Jend",
        ] {
            assert!(words.contains(part), "{part:?}: {words}");
        }
        assert!(!words.contains("said 21\n") && !words.contains("quiet"), "{words}");
    }
}
