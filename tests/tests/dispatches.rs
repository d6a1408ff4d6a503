//! Dispatches: an agent is sent off; what was asked, what held it and what it overstepped is on record.

use crate::support;

use std::path::Path;
use std::time::Duration;

use cofferdam_tests::programs::write_program;
use cofferdam_tests::{Home, Server, text};
use serde_json::{Value, json};
use support::dispatches::{Project, ended, script, spawn, violation};
use support::{assert_proven, assert_wiped, count, said, texts, until};

/// What it wrote on standard output.
async fn said_by(up: &Server, view: &Value) -> String {
    let run = view["run_id"].as_str().unwrap();
    let query = format!("SELECT response->>'stdout' FROM app.sbx_runs WHERE run_id = '{run}'");
    texts(&up.sql().await, &query).await.join("")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dispatch_with_a_spec_ends_with_both_columns_and_one_without_with_neither() {
    let (home, project) = (Home::new(), Project::new());
    let up = home.up();
    let spec = json!({"commands": {"allowed": ["cat", "sh"]}, "access_mode": "workspace-write", "max_commands": 9});
    let with =
        spawn(&up, &script("cat a.txt\necho after > b.txt\n", Some(spec.clone()), &project)).await;
    let without = spawn(&up, &script("true\n", None, &project)).await;
    let view = ended(&up, &with).await;
    assert_eq!(view["status"], "completed", "{view:#}");
    assert_eq!(view["sandbox_spec"], spec);
    let effective = &view["sandbox_effective"];
    assert_eq!(effective["commands"], spec["commands"]);
    assert_eq!(effective["programs_used"]["cat"], 1, "{effective:#}");
    assert_eq!(effective["commands_used"], 1);
    assert_eq!(effective["violations"], json!([]), "{effective:#}");
    assert_eq!(effective["isolation_class"], "container");
    assert!(effective["peaks"]["mem_mb"].as_u64().unwrap() > 0, "{effective:#}");
    let view = ended(&up, &without).await;
    assert_eq!(view["status"], "completed", "{view:#}");
    assert_eq!((&view["sandbox_spec"], &view["sandbox_effective"]), (&Value::Null, &Value::Null));
    // The agent's edits are artifacts; the host's directory is as it was.
    let (_, shown) = up.get(&format!("/api/dispatches/{with}")).await;
    let run = shown["run_id"].as_str().unwrap();
    let (_, artifacts) = up.get(&format!("/api/runs/{run}/artifacts")).await;
    let names: Vec<&str> =
        artifacts.as_array().unwrap().iter().filter_map(|a| a["uri"].as_str()).collect();
    assert!(names.iter().any(|uri| uri.ends_with("/files/b.txt")), "{names:?}");
    assert!(names.iter().any(|uri| uri.ends_with("/changes.json")), "{names:?}");
    assert!(!Path::new(project.path()).join("b.txt").exists());
    assert_proven(&home);
}

/// The record's path is whatever the one who spawned it liked: a command of somebody else, of the host's
/// root perhaps, writes only where that very call says, and over nothing.
#[tokio::test(flavor = "multi_thread")]
async fn h2_a_recorded_output_file_is_never_written_to() {
    let (home, project) = (Home::new(), Project::new());
    let up = home.up();
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let mut body = script("echo '* * * * * root id'\n", None, &project);
    body["output_file"] = json!(at("recorded"));
    body["name"] = json!("x\u{1b}[2K");
    let id = spawn(&up, &body).await;
    let view = ended(&up, &id).await;
    assert_eq!(
        (&view["status"], &view["output_file"]),
        (&json!("completed"), &json!(at("recorded")))
    );
    for command in ["poll", "wait"] {
        let output = home.run(&["dispatch", command, &id]);
        assert_eq!(output.status.code(), Some(0), "{}", said(&output));
        assert!(!Path::new(&at("recorded")).exists(), "{command} wrote where the record says");
    }
    let (asked, link) = (at("asked"), at("link"));
    std::fs::write(at("theirs"), "theirs").unwrap();
    std::os::unix::fs::symlink(at("theirs"), &link).unwrap();
    let poll = |more: &[&str]| home.run(&[&["dispatch", "poll", id.as_str()], more].concat());
    let output = poll(&["--output", &asked]);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    assert_eq!(std::fs::read_to_string(&asked).unwrap(), "* * * * * root id\n");
    for taken in [&asked, &link] {
        let output = poll(&["--output", taken]);
        assert_eq!(output.status.code(), Some(2), "{}", said(&output));
        assert!(String::from_utf8_lossy(&output.stderr).contains("exists"), "{}", said(&output));
    }
    let output = poll(&["--output", &link, "--force"]);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    assert_eq!(std::fs::read_to_string(&link).unwrap(), "* * * * * root id\n");
    assert_eq!(std::fs::read_to_string(at("theirs")).unwrap(), "theirs", "a link was followed");
    assert!(!Path::new(&at("recorded")).exists());
}

/// A retry repeats what somebody else asked for: in the hands of the host's admin it must not reach
/// what only the host's admin may be given.
#[tokio::test(flavor = "multi_thread")]
async fn h10_a_retry_has_no_more_reach_than_whoever_asked_first() {
    let (home, project) = (Home::new(), Project::new());
    let theirs = tempfile::tempdir().unwrap();
    std::fs::write(theirs.path().join("word"), "SECRET-OF-THE-HOST").unwrap();
    let up = home.up_with(&["--allow-dir", project.path()], &[]);
    let (_, submitter) = up.new_key(&json!({"roles": ["submitter"]})).await;
    let spec = json!({"mounts": [{"source": theirs.path(), "target": "/opt/theirs"}]});
    let body = script("cat /opt/theirs/word\n", Some(spec), &project);
    let (status, made) = up.post_as(&submitter, "/api/dispatches", &body).await;
    assert_eq!(status, 201, "{made}");
    let id = text(&made, "id");
    assert_eq!(ended(&up, &id).await["status"], "failed", "outside the allowed roots");
    let (status, again) = up.post(&format!("/api/dispatches/{id}/retry"), &json!({})).await;
    if status == 201 {
        assert_ne!(ended(&up, &text(&again, "id")).await["status"], "completed", "{again}");
    } else {
        assert_eq!(again["code"], "policy_violation", "{again}");
    }
    let leaked = "SELECT count(*) FROM app.artifacts WHERE inline LIKE '%SECRET-OF-THE-HOST%'";
    assert_eq!(count(&up.sql().await, leaked).await, 0);
    // What the host's admin asked for itself is repeated with its reach.
    let mine = spawn(
        &up,
        &script(
            "exit $(test -f /opt/theirs/word && echo 3)\n",
            body.get("sandbox_spec").cloned(),
            &project,
        ),
    )
    .await;
    assert_eq!(ended(&up, &mine).await["exit_code"], 3, "the admin's own mount");
    let (status, again) = up.post(&format!("/api/dispatches/{mine}/retry"), &json!({})).await;
    assert_eq!(status, 201, "{again}");
    assert_eq!(ended(&up, &text(&again, "id")).await["exit_code"], 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_spec_cannot_be_changed_and_an_effective_record_is_written_once() {
    let (home, project) = (Home::new(), Project::new());
    let up = home.up();
    let sql = up.sql().await;
    let id = spawn(&up, &script("true\n", Some(json!({"max_turns": 3})), &project)).await;
    let view = ended(&up, &id).await;
    for statement in [
        "UPDATE app.dispatches SET sandbox_spec = '{\"max_turns\": 4}'",
        "UPDATE app.dispatches SET sandbox_spec = NULL",
        "UPDATE app.dispatches SET sandbox_effective = '{}'",
        "UPDATE app.dispatches SET sandbox_effective = NULL",
        "UPDATE app.dispatches SET status = 'running'",
        "UPDATE app.dispatch_runs SET spec_hash = NULL, spec_canonical = NULL",
    ] {
        let error = sqlx::query(statement).execute(&sql).await.unwrap_err();
        let code = error.as_database_error().and_then(|e| e.code().map(|c| c.into_owned()));
        assert_eq!(code.as_deref(), Some("23001"), "{statement}: {error}");
    }
    let body = json!({"sandbox_spec": {"max_turns": 4}}).to_string().into_bytes();
    for method in ["POST", "PUT", "PATCH"] {
        let path = format!("/api/dispatches/{id}");
        let (status, answer) = up.request(method, &path, Some(&up.key), Some(body.clone())).await;
        assert_eq!(status, 405, "{method}: {answer}");
    }
    assert_eq!(up.get(&format!("/api/dispatches/{id}")).await.1, view);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_denied_tool_a_write_outside_and_a_socket_are_refused_by_the_kernel_and_listed() {
    let (home, project) = (Home::new(), Project::new());
    let up = home.up();
    let attempt = "\
        env true && echo TOOL-RAN\n\
        (echo x > /etc/planted) && echo WRITE-DONE\n\
        perl -e 'use Socket; socket(my $s, PF_INET, SOCK_STREAM, 0) or die \"no: $!\"; print \"SOCKET-MADE\\n\"'\n\
        echo kept > kept.txt\n\
        cat kept.txt\n";
    let spec = json!({"commands": {"denied": ["env"]}, "access_mode": "workspace-write"});
    let id = spawn(&up, &script(attempt, Some(spec), &project)).await;
    let view = ended(&up, &id).await;
    assert_eq!(view["status"], "completed", "{view:#}");
    assert!(violation(&view, "tool_denied")["subject"].as_str().unwrap().ends_with("/env"));
    assert_eq!(violation(&view, "write_denied")["subject"], "/etc/planted");
    let socket = violation(&view, "socket_denied");
    assert_eq!((&socket["subject"], &socket["count"]), (&json!("AF_INET"), &json!(1)));
    assert_eq!(socket["phase"], "exec");
    assert!(socket["first_ms"].as_i64().unwrap() > 0 && socket["last_ms"].is_i64());
    let out = said_by(&up, &view).await;
    for done in ["TOOL-RAN", "WRITE-DONE", "SOCKET-MADE"] {
        assert!(!out.contains(done), "{out}");
    }
    assert!(out.contains("kept"), "{out}");
    assert!(!Path::new("/etc/planted").exists());
    assert_eq!(std::fs::read_dir(project.path()).unwrap().count(), 1, "the project is as it was");
    assert_wiped(&home, &up.sql().await).await;
}

/// M6: a copy of a denied program is not executed, whatever it is called and wherever the agent may write.
#[tokio::test(flavor = "multi_thread")]
async fn m6_a_copy_of_a_denied_tool_is_refused_by_the_kernel_and_listed() {
    let home = Home::new();
    let up = home.up();
    let attempt = "\
        for at in /tmp/cc ./cc /var/tmp/cc; do cp /usr/bin/env $at; chmod 755 $at; $at true && echo COPY-RAN; done\n\
        cat /usr/bin/env > tool.sh && ./tool.sh true && echo OVERWRITTEN-RAN\n\
        for l in /lib64/ld-linux-x86-64.so.2 /lib/ld-linux-aarch64.so.1; do cp $l /tmp/ld && /tmp/ld /usr/bin/env true && echo LOADER-RAN; done\n\
        ln /tmp/cc /tmp/link; /tmp/link true && echo LINK-RAN\n\
        perl -e 'open(my $f, q(<), q(/tmp/cc)); exec {q(/proc/self/fd/) . fileno($f)} q(env), q(true); exit 1' && echo DESCRIPTOR-RAN\n\
        cp /usr/bin/env /usr/bin/other && /usr/bin/other true && echo PLACED-RAN\n\
        echo 'echo by-a-shell' > own.sh; sh own.sh\n\
        cat a.txt\n";
    for access in ["workspace-write", "read-only", "full"] {
        let project = Project::new();
        let tool = Path::new(project.path()).join("tool.sh");
        write_program(&tool, "#!/bin/sh\n");
        let spec = json!({"commands": {"denied": ["env"]}, "access_mode": access});
        let id = spawn(&up, &script(attempt, Some(spec), &project)).await;
        let view = ended(&up, &id).await;
        assert_eq!(view["status"], "completed", "{access}: {view:#}");
        let violations = view["sandbox_effective"]["violations"].as_array().unwrap();
        let refused =
            violations.iter().any(|v| v["kind"] == "tool_denied" && v["subject"] == "/tmp/cc");
        assert!(refused, "{access}: {view:#}");
        let out = said_by(&up, &view).await;
        assert!(!out.contains("-RAN"), "{access}: {out}");
        assert!(out.contains("before"), "{access}: {out}");
        assert_eq!(out.contains("by-a-shell"), access != "read-only", "{access}: {out}");
    }
}

/// A denied tool, by its loader under each name that the loader's descriptor has, from threads that change the name while it
/// is read, after hiding from the agent, and by copies.
const LOADED: &str = include_str!("loader.py");

#[tokio::test(flavor = "multi_thread")]
async fn s8_a_denied_tool_is_not_run_by_its_loader_whatever_the_loader_is_called() {
    let home = Home::new();
    let up = home.up();
    for access in ["workspace-write", "read-only"] {
        let project = Project::new();
        let write =
            |name: &str, text: &str| write_program(&Path::new(project.path()).join(name), text);
        write("try.py", LOADED);
        write("given", "#!/lib64/ld-linux-x86-64.so.2 /usr/bin/env\n");
        let spec = json!({"commands": {"denied": ["env"]}, "access_mode": access});
        let prompt = "/usr/bin/python3 try.py \"$PWD\"";
        let id = spawn(&up, &script(prompt, Some(spec), &project)).await;
        let view = ended(&up, &id).await;
        let out = said_by(&up, &view).await;
        assert_eq!(view["status"], "completed", "{access}: {out} {view:#}");
        let ran: Vec<&str> = out.lines().filter(|line| line.ends_with("RAN")).collect();
        // The race's good name is a program that is allowed.
        let ran: Vec<&str> = ran.into_iter().filter(|line| *line != "raced RAN").collect();
        assert_eq!(ran, ["allowed RAN"], "{access}: {out}");
        assert!(out.contains("tried True"), "{access}: {out}");
        let violations = view["sandbox_effective"]["violations"].as_array().unwrap();
        assert!(violations.iter().any(|v| v["kind"] == "tool_denied"), "{access}: {view:#}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn s50_a_loader_that_a_project_brings_runs_nothing_under_a_list_of_allowed_commands() {
    let home = Home::new();
    let up = home.up();
    for access in ["workspace-write", "read-only"] {
        let project = Project::new();
        for (from, name) in
            [("/lib64/ld-linux-x86-64.so.2", "own-loader"), ("/usr/bin/env", "own-env")]
        {
            std::fs::copy(from, Path::new(project.path()).join(name)).unwrap();
        }
        let attempt = "cat a.txt\n./own-loader /usr/bin/env && echo LOADER-RAN\n\
                       ./own-loader ./own-env && echo BOTH-RAN\n./own-env && echo COPY-RAN\ncat a.txt\n";
        let spec = json!({"commands": {"allowed": ["cat"]}, "access_mode": access});
        let id = spawn(&up, &script(attempt, Some(spec), &project)).await;
        let view = ended(&up, &id).await;
        let out = said_by(&up, &view).await;
        assert_eq!(view["status"], "completed", "{access}: {out} {view:#}");
        assert!(!out.contains("-RAN"), "{access}: {out}");
        let violations = view["sandbox_effective"]["violations"].as_array().unwrap();
        assert!(violations.iter().any(|v| v["kind"] == "tool_denied"), "{access}: {view:#}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_allowlist_leaves_nothing_else_to_execute_however_it_is_named() {
    let (home, project) = (Home::new(), Project::new());
    let up = home.up();
    let attempt = "\
        cat a.txt\n\
        ls && echo LS-RAN\n\
        cp a.txt copy && echo CP-RAN\n\
        cat /bin/ls > own; chmod +x own; ./own && echo OWN-RAN\n\
        for l in /lib64/ld-linux-x86-64.so.2 /lib/ld-linux-aarch64.so.1; do $l /bin/ls && echo LOADER-RAN; done\n\
        cat a.txt\n";
    let spec = json!({"commands": {"allowed": ["cat"]}});
    let id = spawn(&up, &script(attempt, Some(spec), &project)).await;
    let view = ended(&up, &id).await;
    assert_eq!(view["status"], "completed", "{view:#}");
    assert_eq!(view["sandbox_effective"]["programs_used"], json!({"cat": 3}), "{view:#}");
    assert_eq!(violation(&view, "tool_denied")["phase"], "exec");
    let out = said_by(&up, &view).await;
    assert!(out.starts_with("before"), "{out}");
    for done in ["LS-RAN", "CP-RAN", "OWN-RAN", "LOADER-RAN"] {
        assert!(!out.contains(done), "{out}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_is_reported_and_with_enforce_it_ends_the_dispatch() {
    let (home, project) = (Home::new(), Project::new());
    let up = home.up();
    let work = "for i in 1 2 3 4; do cat a.txt; done; echo ALL-DONE > end.txt; sleep 0.1\n";
    let spec = json!({"max_commands": 2});
    let advisory = spawn(&up, &script(work, Some(spec.clone()), &project)).await;
    // Many more than the limit: on a busy machine some run before the end reaches them.
    let many = "i=0; while [ $i -lt 400 ]; do cat a.txt; i=$((i+1)); done\n";
    let mut body = script(many, Some(spec), &project);
    body["enforce"] = json!(true);
    let enforced = spawn(&up, &body).await;
    let view = ended(&up, &advisory).await;
    assert_eq!(view["status"], "completed", "{view:#}");
    assert_eq!(view["sandbox_effective"]["commands_used"], 5);
    assert_eq!(violation(&view, "commands_exceeded")["count"], 3);
    let view = ended(&up, &enforced).await;
    assert_eq!(view["status"], "failed", "{view:#}");
    let used = view["sandbox_effective"]["commands_used"].as_u64().unwrap();
    assert!((3..400).contains(&used), "{view:#}");
    assert_eq!(view["sandbox_effective"]["enforce"], true);
    assert!(view["error_message"].as_str().unwrap().contains("more commands"), "{view:#}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_known_agents_events_are_counted_and_a_missing_agent_is_a_clear_error() {
    let (home, project) = (Home::new(), Project::new());
    let up = home.up();
    // A stand-in that says what the real one would; the real one is found the same way.
    let image = tempfile::tempdir().unwrap();
    let missing = json!({"agent_type": "codex", "prompt": "p", "project_dir": project.path(),
        "sandbox_spec": {"max_turns": 1}});
    let id = spawn(&up, &missing).await;
    let view = ended(&up, &id).await;
    assert_eq!(view["status"], "failed", "{view:#}");
    assert!(
        view["error_message"].as_str().unwrap().contains("cofferdam agent install codex"),
        "{view:#}"
    );
    let bin = image.path().join("codex");
    let events = "#!/bin/sh\ncat >&2\n\
        echo '{\"type\":\"turn.started\"}'\n\
        echo '{\"type\":\"item.completed\",\"item\":{\"type\":\"command_execution\"}}'\n\
        echo '{\"type\":\"turn.started\"}'\n\
        echo '{\"type\":\"turn.completed\",\"usage\":{\"input_tokens\":7,\"cached_input_tokens\":2,\"output_tokens\":3}}'\n";
    write_program(&bin, events);
    let mut present = missing;
    present["sandbox_spec"]["mounts"] =
        json!([{"source": bin.to_str().unwrap(), "target": "/opt/agents/bin/codex"}]);
    let id = spawn(&up, &present).await;
    let view = ended(&up, &id).await;
    assert_eq!(view["status"], "completed", "{view:#}");
    assert_eq!((&view["turns"], &view["commands"]), (&json!(2), &json!(1)), "{view:#}");
    assert_eq!((&view["in_tokens"], &view["out_tokens"]), (&json!(7), &json!(3)));
    assert_eq!(violation(&view, "turns_exceeded")["count"], 1);
    let (_, sums) = up.get(&format!("/api/dispatches/tokens?id={id}")).await;
    assert_eq!(sums["total"], 10, "{sums}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kill_ends_the_whole_sandbox_a_timeout_says_so_and_a_retry_names_its_parent() {
    let (home, project) = (Home::new(), Project::new());
    let up = home.up();
    let sql = up.sql().await;
    let slow = "sleep 300 & sleep 300\n";
    let id = spawn(&up, &script(slow, Some(json!({"max_turns": 1})), &project)).await;
    until("it has a process", Duration::from_secs(30), async || {
        up.get(&format!("/api/dispatches/{id}")).await.1["pid"].is_i64()
    })
    .await;
    let pid = up.get(&format!("/api/dispatches/{id}")).await.1["pid"].as_i64().unwrap();
    let output = home.run(&["dispatch", "kill", &id]);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let view = ended(&up, &id).await;
    assert_eq!(view["status"], "cancelled", "{view:#}");
    assert_eq!(view["sandbox_effective"]["started"], true, "{view:#}");
    assert!(!Path::new(&format!("/proc/{pid}")).exists());
    assert_eq!(home.run(&["dispatch", "kill", &id]).status.code(), Some(1), "it is over");
    let mut body = script(slow, None, &project);
    body["timeout_sec"] = json!(1);
    let late = spawn(&up, &body).await;
    assert_eq!(ended(&up, &late).await["status"], "timeout");
    let (status, again) = up.post(&format!("/api/dispatches/{late}/retry"), &json!({})).await;
    assert_eq!(status, 201, "{again}");
    assert_eq!(
        (&again["parent_dispatch_id"], &again["retry_count"]),
        (&json!(late), &json!(1)),
        "{again}"
    );
    assert_eq!(ended(&up, again["id"].as_str().unwrap()).await["status"], "timeout");
    assert_eq!(count(&sql, "SELECT count(*) FROM app.dispatches").await, 3);
    assert_wiped(&home, &sql).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn depth_and_live_dispatches_of_a_scope_are_limited_in_sql() {
    let (home, project) = (Home::new(), Project::new());
    // Nothing executes: whatever is spawned stays live.
    let shim = Server::start(&home, &["shim", "--listen", "127.0.0.1:0"], &[]);
    let sql = shim.sql().await;
    for name in ["dispatch.max_spawn_depth", "dispatch.max_live_per_scope"] {
        let output = home.run(&["config", "set", name, "2", "--global"]);
        assert!(output.status.success(), "{output:?}");
    }
    let mut parent = spawn(&shim, &script("true\n", None, &project)).await;
    for depth in 1..=2 {
        let mut body = script("true\n", None, &project);
        body["parent_id"] = json!(parent);
        parent = spawn(&shim, &body).await;
        let (_, view) = shim.get(&format!("/api/dispatches/{parent}")).await;
        assert_eq!(view["spawn_depth"], depth);
    }
    let before = count(&sql, "SELECT count(*) FROM app.intents").await;
    let mut deep = script("true\n", None, &project);
    deep["parent_id"] = json!(parent);
    let mut scoped = script("true\n", None, &project);
    scoped["scope_id"] = json!("s");
    for _ in 0..2 {
        spawn(&shim, &scoped).await;
    }
    for body in [&deep, &scoped] {
        let (status, answer) = shim.post("/api/dispatches", body).await;
        assert_eq!((status, answer["code"].as_str().unwrap()), (409, "state_conflict"), "{answer}");
        assert!(answer["error"].as_str().unwrap().contains("limit"), "{answer}");
    }
    let after = count(&sql, "SELECT count(*) FROM app.intents").await;
    assert_eq!(after, before + 2, "what was refused wrote nothing");
    let forged = "INSERT INTO app.dispatches (id, project_dir) VALUES ('aaaaaaaa', '/p')";
    assert!(sqlx::query(forged).execute(&sql).await.is_err(), "a dispatch needs an owner");
    assert_eq!(texts(&sql, "SELECT id FROM app.dispatches WHERE id = 'aaaaaaaa'").await.len(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_dispatches_survive_a_killed_worker_and_each_has_one_effective_record() {
    let (home, project) = (Home::new(), Project::new());
    let shim = Server::start(&home, &["shim", "--listen", "127.0.0.1:0"], &[]);
    let mut worker = Server::start(&home, &["worker"], &[]);
    let sql = shim.sql().await;
    let body =
        script("echo $COFFERDAM_DISPATCH; sleep 0.3\n", Some(json!({"max_turns": 5})), &project);
    for _ in 0..100 {
        spawn(&shim, &body).await;
    }
    until("some have ended and some run", Duration::from_secs(120), async || {
        count(&sql, "SELECT count(*) FROM app.dispatches WHERE status = 'completed'").await >= 20
    })
    .await;
    worker.kill();
    let live = count(&sql, "SELECT count(*) FROM app.dispatches WHERE status = 'running'").await;
    assert!(live > 0, "the kill came too late to prove anything");
    let _worker = Server::start(&home, &["worker"], &[]);
    until("all are over", Duration::from_secs(240), async || {
        count(&sql, "SELECT count(*) FROM app.dispatches WHERE status IN ('spawned','running')")
            .await
            == 0
    })
    .await;
    let bad = texts(
        &sql,
        "SELECT id || ' ' || status || ' ' || coalesce(error_message, '') FROM app.dispatches
          WHERE status <> 'completed' OR sandbox_effective IS NULL OR NOT sandbox_effective @> '{\"started\": true}'",
    )
    .await;
    assert!(bad.is_empty(), "{bad:#?}");
    assert_eq!(count(&sql, "SELECT count(*) FROM app.dispatches").await, 100);
    // A result is written once for each attempt, and the record is the result's.
    assert_eq!(
        count(&sql, "SELECT count(DISTINCT run_id) FROM app.sbx_runs WHERE response ? 'agent'")
            .await,
        100
    );
    assert_proven(&home);
    assert_wiped(&home, &sql).await;
}
