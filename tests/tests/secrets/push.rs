//! A result leaves as a branch: pushed from a sandbox by a secret that it never has, once on record.

use std::fs;
use std::path::{Path, PathBuf};

use cofferdam_tests::{Home, Server, text};
use serde_json::{Value, json};

use super::forge::{Forge, VALUE};
use super::set;
use crate::support::git::git;
use crate::support::{assert_proven, code, count, said};

/// A clone of the forge's repository, whose own configuration would send the push elsewhere.
fn cloned(forge: &Forge, dir: &Path) -> PathBuf {
    let remote = forge.repository();
    git(&remote, &["config", "http.receivepack", "true"]);
    let local = dir.join("local");
    git(dir, &["clone", "-q", remote.to_str().unwrap(), local.to_str().unwrap()]);
    git(&local, &["config", "url.https://other.example/.pushInsteadOf", "https://git.example/"]);
    fs::write(local.join(".git/hooks/pre-push"), "#!/bin/sh\nexit 1\n").unwrap();
    local
}

/// A commit of the clone.
fn commit(local: &Path, content: &str) -> String {
    fs::write(local.join("fixed"), content).unwrap();
    git(local, &["add", "fixed"]);
    git(local, &["commit", "-q", "-m", content]);
    git(local, &["rev-parse", "HEAD"])
}

/// The run of the example, as a person starts it who answers its gate.
fn pushed(home: &Home, local: &Path, commit: &str, key: &str) -> (i32, Value) {
    let (repo, commit) = (format!("repo={}", local.display()), format!("commit={commit}"));
    let args = ["run", "examples/push-branch.yaml", "--yes", "--json", "--run-key", key];
    let done =
        home.run(&[&args[..], &["-i", &repo, "-i", &commit, "-i", "branch=fix/app"]].concat());
    (
        code(&done),
        serde_json::from_slice(&done.stdout).unwrap_or_else(|_| panic!("{}", said(&done))),
    )
}

async fn said_of(up: &Server, run: &Value) -> Value {
    let path = format!("/api/runs/{}/artifacts", text(run, "runId"));
    let (_, rows) = up.get(&path).await;
    let mut found = rows.as_array().unwrap_or_else(|| panic!("{rows}")).iter();
    let row =
        found.find(|row| row["name"] == "files/push.json").unwrap_or_else(|| panic!("{rows}"));
    assert_eq!(row["sha256"].as_str().unwrap().len(), 64, "{row}");
    row.clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_result_is_pushed_as_a_branch_once_by_a_secret_that_no_sandbox_has() {
    let (home, forge) = (Home::new(), Forge::start());
    let up = forge.up(&home);
    set(&home, &["--for", "git.example"], VALUE);
    let dir = tempfile::tempdir().unwrap();
    let local = cloned(&forge, dir.path());
    let at = || git(&forge.repository(), &["rev-parse", "refs/heads/fix/app"]);
    let first = commit(&local, "one");
    let key = format!("push:fix/app:{first}");
    let (exit, run) = pushed(&home, &local, &first, &key);
    assert_eq!((exit, at()), (0, first.clone()), "{run}");
    said_of(&up, &run).await;
    let wanted = json!({"remote": "https://git.example/repo.git", "branch": "fix/app", "before": "", "after": first});
    let shown = home.run(&["artifacts", "cat", &text(&run, "runId"), "push.json"]);
    assert_eq!(serde_json::from_slice::<Value>(&shown.stdout).unwrap(), wanted);
    // Started again under its branch and commit it is the same run; under another key it finds the commit there.
    let heard = forge.heard().len();
    let (exit, again) = pushed(&home, &local, &first, &key);
    assert_eq!((exit, &again["runId"], forge.heard().len()), (0, &run["runId"], heard));
    let (exit, third) = pushed(&home, &local, &first, "another");
    assert!(exit == 0 && third["runId"] != run["runId"], "{third}");
    let pushes = || forge.heard().iter().filter(|one| one.path.ends_with("receive-pack")).count();
    assert_eq!(pushes(), 1, "one push in all");

    // A later commit moves the branch on; one that would drop what is there is refused, and the branch stays.
    let second = commit(&local, "two");
    assert_eq!(pushed(&home, &local, &second, "second").0, 0);
    git(&local, &["reset", "-q", "--hard", "HEAD~2"]);
    let other = commit(&local, "three");
    let (exit, refused) = pushed(&home, &local, &other, "third");
    assert_eq!((exit, at()), (1, second), "{refused}");

    let heard = forge.heard();
    assert!(heard.iter().all(|one| one.host.as_deref() == Some("git.example")), "{heard:?}");
    let sql = up.sql().await;
    let held = format!(
        "SELECT count(*) FROM app.sbx_runs WHERE request::text LIKE '%{VALUE}%' OR response::text LIKE '%{VALUE}%'"
    );
    assert_eq!(count(&sql, &held).await, 0);
    let (_, uses) = up.get(&format!("/api/runs/{}/secrets", text(&run, "runId"))).await;
    assert_eq!(uses[0]["name"], "forge", "{uses}");
    assert_proven(&home);
}
