//! What cannot get better is refused when a run is submitted: what the host does not have, and globs that leave the directory.

use crate::support;

use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;

use cofferdam_tests::{Home, Server, row_counts, text};
use serde_json::{Value, json};
use support::{assert_proven, code, count, said};

/// A recipe of one task with these fields.
fn recipe(task: &Value) -> String {
    let mut task = task.clone();
    task["name"] = json!("t");
    if task["exec"].is_null() {
        task["exec"] = json!({"run": "true", "timeout": "30s"});
    }
    json!({"id": "needs", "v": "1", "plan": {"tasks": [task]}}).to_string()
}

fn file(from: &Path) -> Value {
    json!({"files": [{"text": "x", "to": "/work/a"}, {"from": from, "to": "/work/b", "access": "read-only"}]})
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_host_does_not_have_is_refused_and_nothing_is_written() {
    let (home, allowed, secret) =
        (Home::new(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (inside, outside) = (allowed.path(), secret.path());
    symlink(outside, inside.join("way-out")).unwrap();
    std::fs::write(inside.join("given"), "x").unwrap();
    let up = home.up_with(&["--allow-dir", inside.to_str().unwrap()], &[]);
    let (_, tenant) = up.new_key(&json!({"tenant": "acme", "roles": ["submitter"]})).await;
    let sql = up.sql().await;
    let start = async |key: &str, task: &Value| {
        let yaml = json!({"yaml": recipe(task)});
        let (status, imported) = up.post_as(key, "/api/recipes/import", &yaml).await;
        assert_eq!(status, 201, "{imported}");
        let before = row_counts(&sql).await;
        let body = json!({"recipeRef": imported["recipeRef"], "formData": {}, "opts": {}});
        let (status, answer) = up.post_as(key, "/api/run", &body).await;
        assert_eq!((status, &answer["code"]), (400, &json!("recipe_invalid")), "{answer}");
        assert_eq!(row_counts(&sql).await, before, "{answer}");
        answer
    };
    let mut words = Vec::new();
    for path in [inside.join("nowhere"), inside.join("way-out"), outside.to_owned(), "/etc".into()]
    {
        let answer = start(&tenant, &file(&path)).await;
        words.push(text(&answer, "error").replace(path.to_str().unwrap(), "PATH"));
        assert_eq!(answer["details"], json!({"task": "t", "field": "files[1].from"}));
    }
    words.dedup();
    assert_eq!(words.len(), 1, "one answer for what is absent and what is outside: {words:#?}");
    assert!(words[0].contains("task \"t\": files[1].from:"), "{words:?}");
    // The host's admin, to whom everything is open, is told why.
    let answer = start(&up.key, &file(&inside.join("nowhere"))).await;
    assert!(text(&answer, "error").contains("No such file"), "{answer}");
    for (task, field) in [
        (json!({"exec": {"run": ["no-such-program-anywhere"], "timeout": "30s"}}), "exec.run"),
        (json!({"exec": {"run": ["/usr/bin/no-such-program"], "timeout": "30s"}}), "exec.run"),
        (json!({"build": {"run": ["no-such-program-anywhere"]}}), "build.run"),
        (json!({"image": "dir:/no/such/root"}), "image"),
        (json!({"repo": {"path": "/no/such/repo", "commit": "a".repeat(40)}}), "repo.path"),
    ] {
        let answer = start(&up.key, &task).await;
        assert_eq!(answer["details"]["field"], json!(field), "{answer}");
    }
    // What is there runs.
    let (_, header) = up
        .start_recipe_as(&up.key, &recipe(&file(&inside.join("given"))), json!({}), json!({}))
        .await;
    assert_eq!(up.wait_terminal(&text(&header, "runId")).await["status"], "succeeded");
    assert_proven(&home);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_glob_that_leaves_the_directory_is_refused_at_import_and_once_it_is_filled_in() {
    let home = Home::new();
    let up = home.up();
    for (task, word) in [
        (json!({"artifacts": ["ok", "../x"]}), "artifacts[1]"),
        (json!({"artifacts": [{"path": "/etc/passwd"}]}), "artifacts[0]"),
        (json!({"reports": ["a/../../junit.xml"]}), "reports[0]"),
    ] {
        let yaml = json!({"yaml": recipe(&task)});
        let (status, answer) = up.post("/api/recipes/import", &yaml).await;
        assert_eq!((status, &answer["code"]), (400, &json!("recipe_invalid")), "{answer}");
        assert!(text(&answer, "error").contains(word), "{answer}");
    }
    let mut with_form: Value =
        serde_json::from_str(&recipe(&json!({"artifacts": ["${form.out}"]}))).unwrap();
    with_form["form"] = json!({"type": "object", "properties": {"out": {"type": "string"}}});
    let sql = up.sql().await;
    for out in ["../x", "/etc/passwd"] {
        let runs = count(&sql, "SELECT count(*) FROM app.runs").await;
        let form = json!({"out": out});
        let (status, answer) =
            up.start_recipe_as(&up.key, &with_form.to_string(), form, json!({})).await;
        assert_eq!((status, &answer["code"]), (400, &json!("recipe_invalid")), "{answer}");
        assert!(text(&answer, "error").contains("task \"t\": artifacts[0]:"), "{answer}");
        assert_eq!(count(&sql, "SELECT count(*) FROM app.runs").await, runs);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replay_finds_its_run_although_its_files_are_gone() {
    let (home, dir) = (Home::new(), tempfile::tempdir().unwrap());
    let up = home.up();
    let path = dir.path().join("word");
    std::fs::write(&path, "x").unwrap();
    let start = async |run_key: &str| {
        let opts = json!({"runKey": run_key});
        up.start_recipe_as(&up.key, &recipe(&file(&path)), json!({}), opts).await
    };
    let (status, first) = start("once").await;
    assert_eq!(status, 201, "{first}");
    assert_eq!(up.wait_terminal(&text(&first, "runId")).await["status"], "succeeded");
    std::fs::remove_file(&path).unwrap();
    let (status, again) = start("once").await;
    assert_eq!((status, &again["isReplay"]), (200, &json!(true)), "{again}");
    assert_eq!(again["runId"], first["runId"]);
    let (status, answer) = start("another").await;
    assert_eq!((status, &answer["code"]), (400, &json!("recipe_invalid")), "{answer}");
    assert_proven(&home);
}

#[tokio::test(flavor = "multi_thread")]
async fn where_the_server_does_not_execute_the_run_fails_when_it_is_compiled_without_a_sandbox() {
    let home = Home::new();
    let api = Server::start(&home, &["shim", "--listen", "127.0.0.1:0"], &[]);
    let _worker = Server::start(&home, &["worker"], &[]);
    let absent = file(Path::new("/no/such/file"));
    let header = api.run_recipe(&recipe(&absent), json!({}), json!({})).await;
    let run = text(&header, "runId");
    let end = api.wait_terminal(&run).await;
    assert_eq!(end["status"], "failed", "{end}");
    assert!(text(&end, "error").contains("files[1].from"), "{end}");
    let rows = format!("SELECT count(*) FROM app.sbx_runs WHERE run_id = '{run}'");
    assert_eq!(count(&api.sql().await, &rows).await, 0, "nothing was tried");
    assert_eq!(api.get(&format!("/api/runs/{run}/wipes")).await.1, json!([]));
    assert_proven(&home);
}

#[test]
fn the_command_line_says_where_this_host_has_a_program_that_no_sandbox_sees() {
    let (home, user) = (Home::new(), tempfile::tempdir().unwrap());
    let bin = user.path().join(".pyenv/bin");
    std::fs::create_dir_all(&bin).unwrap();
    let program = bin.join("cofferdam-test-tool");
    std::fs::write(&program, "#!/bin/sh\n").unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    let task = json!({"exec": {"run": ["cofferdam-test-tool"], "timeout": "30s"}});
    let path = support::recipe(home.path(), "tool.yaml", &recipe(&task));
    let mut command = home.command(&["run", &path]);
    command.env("PATH", format!("{}:/usr/bin:/bin", bin.display()));
    let output = command.output().unwrap();
    assert_eq!(code(&output), 2, "{}", said(&output));
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    for word in ["recipe_invalid", "exec.run", "which is not mounted", ".pyenv"] {
        assert!(words.contains(word), "{word}: {words}");
    }
    assert_proven(&home);
}
