//! A state directory that was copied, moved or restored.

use crate::support;

use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use cofferdam_tests::{Home, live_dir, superuser, superuser_url, text};
use serde_json::json;
use support::{count, executing, names, said, until};

fn copied(from: &Path, to: &Path) {
    let status = Command::new("cp").arg("-a").arg(from.join(".")).arg(to).status().unwrap();
    assert!(status.success());
}

/// A command on any directory.
fn on(home: &Home, state: &Path, args: &[&str]) -> Output {
    let mut command = home.command(args);
    command.env("COFFERDAM_STATE", state);
    command.output().unwrap()
}

fn files(dir: &Path) -> Vec<String> {
    let mut all = names(dir);
    all.sort();
    all
}

#[tokio::test(flavor = "multi_thread")]
async fn e4_a_copied_state_directory_is_refused_and_its_original_lives_on() {
    let home = Home::new();
    let up = home.up();
    let sql = up.sql().await;
    let yaml = r#"{"id": "slow", "v": "1", "plan": {"tasks": [
        {"name": "t", "exec": {"run": "sleep 600", "timeout": "15m"}}]}}"#;
    let header = up.run_recipe(yaml, json!({}), json!({})).await;
    executing(&sql, Duration::from_secs(60)).await;
    let copy = tempfile::tempdir().unwrap();
    copied(home.path(), copy.path());
    let live = live_dir(home.path());
    let (before, inside) = (files(copy.path()), files(&live.join("sandboxes")));
    assert_eq!(inside.len(), 1, "one sandbox lives in {}", live.display());
    for args in [
        &["ps"][..],
        &["run", "examples/value.yaml"],
        &["exec", "--", "true"],
        &["up", "--listen", "127.0.0.1:0"],
        &["worker"],
        &["prove"],
        &["db"],
        &["image", "ls"],
        &["cache", "ls"],
        &["doctor"],
        &["webhook", "ls"],
        &["adopt"],
    ] {
        let output = on(&home, copy.path(), args);
        let words = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(3), "{args:?}: {}", said(&output));
        let original = home.path().canonicalize().unwrap();
        let named = words.contains(original.to_str().unwrap());
        assert!(
            named
                && words.contains(if args == ["adopt"] {
                    "the original is at"
                } else {
                    "is a copy of"
                }),
            "{args:?}: {words}"
        );
    }
    assert_eq!(files(copy.path()), before, "nothing was done in the copy");
    assert_eq!(files(&live.join("sandboxes")), inside, "nor to the original's sandboxes");
    let (_, header) = up.get(&format!("/api/runs/{}", text(&header, "runId"))).await;
    assert_eq!(header["status"], "running");
    assert_eq!(home.run(&["cancel", &text(&header, "runId")]).status.code(), Some(0));
    up.wait_terminal(&text(&header, "runId")).await;
    let open = "SELECT count(*) FROM app.remote_execution_sessions WHERE ended_at IS NULL";
    until("its sandbox is wiped", Duration::from_secs(60), async || count(&sql, open).await == 0)
        .await;
    support::assert_wiped(&home, &sql).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn e4_a_moved_directory_goes_on_and_a_restored_one_is_adopted_once_its_original_is_gone() {
    let outside = tempfile::tempdir().unwrap();
    let home = Home::new();
    assert_eq!(home.run(&["run", "examples/value.yaml"]).status.code(), Some(0));
    let backup = outside.path().join("backup");
    std::fs::create_dir(&backup).unwrap();
    copied(home.path(), &backup);
    // Moved: the directory is the same one.
    let moved = outside.path().join("moved");
    std::fs::rename(home.path(), &moved).unwrap();
    let output = on(&home, &moved, &["ps", "--json"]);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    // Restored where it was, while the original is elsewhere.
    std::fs::create_dir(home.path()).unwrap();
    copied(&backup, home.path());
    let refused = home.run(&["ps"]);
    let words = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.status.code() == Some(3) && words.contains("cofferdam adopt"), "{words}");
    std::fs::remove_dir_all(&moved).unwrap();
    let adopted = home.run(&["adopt"]);
    assert_eq!(adopted.status.code(), Some(0), "{}", said(&adopted));
    assert_eq!(home.run(&["adopt"]).status.code(), Some(0), "once more changes nothing");
    let runs = home.run_json(&["ps", "--json"]);
    assert_eq!(runs["runs"].as_array().unwrap().len(), 1, "its records are there: {runs}");
    assert_eq!(home.run(&["exec", "--", "true"]).status.code(), Some(0));
    // The backup is still a copy, now of this one.
    assert_eq!(on(&home, &backup, &["ps"]).status.code(), Some(3));
}

/// A database of a home's cluster, which runs meanwhile.
fn database(home: &Home, name: &str) -> String {
    superuser_url(&home.database_url()).replacen("/cofferdam?", &format!("/{name}?"), 1)
}

#[tokio::test(flavor = "multi_thread")]
async fn e4_a_database_that_was_cloned_is_refused_until_it_is_adopted() {
    let home = Home::new();
    let up = home.up();
    let mut root = superuser(&up.sql().await).await;
    let beside = Home::empty();
    let with = |url: &str, args: &[&str]| {
        let mut command = beside.command(args);
        command.env("DATABASE_URL", url);
        let output = command.output().unwrap();
        let words = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code(), words)
    };
    let (one, two) = (database(&home, "one"), database(&home, "two"));
    sqlx::query("CREATE DATABASE one").execute(&mut root).await.unwrap();
    let (code, words) = with(&one, &["run", "examples/value.yaml"]);
    assert_eq!(code, Some(0), "{words}");
    sqlx::query("CREATE DATABASE two TEMPLATE one").execute(&mut root).await.unwrap();
    for args in [
        &["exec", "--", "true"][..],
        &["worker"],
        &["up", "--listen", "127.0.0.1:0"],
        &["run", "examples/value.yaml"],
    ] {
        let (code, words) = with(&two, args);
        assert_eq!(code, Some(3), "{args:?}: {words}");
        assert!(
            words.contains("is a copy of another one") && words.contains("cofferdam adopt"),
            "{words}"
        );
    }
    let (code, words) = with(&two, &["prove"]);
    assert!(
        code == Some(0) && words.contains("a copy of another one"),
        "an auditor may read it: {words}"
    );
    let (code, words) = with(&one, &["ps"]);
    assert!(code == Some(0) && !words.contains("a copy"), "the original is itself: {words}");
    until(
        "the original's last worker is not heard any more",
        Duration::from_secs(60),
        async || with(&two, &["adopt"]).0 == Some(0),
    )
    .await;
    let (code, words) = with(&two, &["run", "examples/value.yaml"]);
    assert_eq!(code, Some(0), "{words}");
}
