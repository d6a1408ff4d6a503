//! From a question to a branch with each agent: it says what is wrong, mends and tests it, and a person agrees to the difference.

use std::fs;
use std::path::Path;
use std::process::Command;

use cofferdam_tests::text;
use serde_json::{Value, json};

use super::ended;
use super::proxied::{World, all, world};
use crate::git_results::world::git;
use crate::support::agents::Programs;
use crate::support::{assert_proven, assert_wiped};

/// A program that subtracts where it should add, and its test.
fn repository(dir: &Path) {
    fs::write(dir.join("add.sh"), "echo $(($1 - $2))\n").unwrap();
    fs::write(dir.join("test.sh"), "test \"$(sh add.sh 2 3)\" = 5 && echo passed\n").unwrap();
    git(dir, &["init", "-q", "-b", "main"]);
    git(dir, &["add", "-A"]);
    git(dir, &["commit", "-q", "-m", "base"]);
}

/// One dispatch that its model leads through these steps, and its end.
async fn sent(
    world: &World,
    kind: &str,
    (prompt, steps): (&str, &Value),
    spec: &Value,
    more: &[&str],
) -> Value {
    let prompt = format!("{prompt} [[steps: {steps}]]");
    let (code, id) = world.spawned(kind, &prompt, spec, more);
    assert_eq!(code, Some(0), "{id}");
    let view = ended(&world.up, &id).await;
    assert_eq!(view["status"], "completed", "{view:#}");
    view
}

fn verdict(status: &str, summary: &str) -> Value {
    json!({"text": format!("Done.\n--- VERDICT ---\nSTATUS: {status}\nSUMMARY: {summary}\n---")})
}

async fn walks(kind: &str) {
    let Some(programs) = Programs::installed() else { return };
    let world = world(&programs, all()).await;
    let dir = Path::new(world.project.path()).to_owned();
    repository(&dir);
    let head = git(&dir, &["rev-parse", "HEAD"]);

    // Plan: it may look, and leaves nothing.
    let looks = json!([{"sh": "sh test.sh; cat add.sh"}, verdict("fail", "it subtracts")]);
    let spec = json!({"models": {"providers": ["main"]}, "access_mode": "read-only"});
    let plan = sent(&world, kind, ("Why does the test fail?", &looks), &spec, &[]).await;
    assert_eq!(plan["verdict_summary"], "it subtracts", "{plan:#}");
    assert_eq!(plan["sandbox_effective"]["access_mode"], "read-only", "{plan:#}");

    // Build and test: the same command failed before.
    let mend = "sh test.sh && exit 9; sed -i s/-/+/ add.sh && sh test.sh";
    let builds = json!([{"sh": mend}, verdict("pass", "it adds, and its test passes")]);
    let spec = json!({"models": {"providers": ["main"]}});
    let built = sent(&world, kind, ("Mend it.", &builds), &spec, &["--commit", "HEAD"]).await;
    assert_eq!((&built["verdict_status"], &built["commands"]), (&json!("pass"), &json!(1)));
    let id = text(&built, "id");

    // Difference: what the agent made, as text.
    let patch = world.home.run(&["patch", &id]);
    let patch = String::from_utf8(patch.stdout).unwrap();
    assert!(patch.contains("-echo $(($1 - $2))\n+echo $(($1 + $2))\n"), "{patch}");
    assert!(!patch.contains("test.sh"), "{patch}");

    // Apply: a gate with it, then a branch; what is checked out stays.
    let repo = world.project.path();
    let args = ["apply", &id, "--repo", repo, "--branch", "fix", "-m", "Add", "--yes", "--json"];
    let applied = world.home.run_json(&args);
    let shown = world.home.run(&["gate", "show", &text(&applied, "approvedIn")]);
    let shown = String::from_utf8(shown.stdout).unwrap();
    assert!(shown.contains("+echo $(($1 + $2))") && shown.contains("Add"), "{shown}");
    assert_eq!(git(&dir, &["rev-parse", "HEAD"]), head);
    let clone = world.home.path().join("clone");
    let to = clone.to_str().unwrap();
    git(&dir, &["clone", "-q", "--branch", "fix", repo, to]);
    assert!(git(&clone, &["log", "-1", "--format=%B"]).starts_with("Add\n"));
    let tested = Command::new("sh").arg("test.sh").current_dir(&clone).status().unwrap();
    assert!(tested.success());
    assert_proven(&world.home);
    assert_wiped(&world.home, &world.up.sql().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn codex_plans_builds_and_tests_and_its_patch_becomes_a_branch() {
    walks("codex").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn claude_plans_builds_and_tests_and_its_patch_becomes_a_branch() {
    walks("claude").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn opencode_plans_builds_and_tests_and_its_patch_becomes_a_branch() {
    walks("opencode").await;
}
