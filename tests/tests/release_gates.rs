//! The verdict of a release: GO only where every gate passed on one committed tree, and never by another try.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use cofferdam_tests::repository;
use serde_json::Value;

/// A repository of its own, whose gates are files that are there or not.
fn project() -> tempfile::TempDir {
    let project = tempfile::tempdir().unwrap();
    let root = project.path();
    fs::create_dir(root.join("scripts")).unwrap();
    for script in ["gates", "tested.sh"] {
        let to = root.join("scripts").join(script);
        fs::copy(repository().join("scripts").join(script), &to).unwrap();
        fs::set_permissions(&to, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let list = "# a comment\n\
        G0 | quick check full | the \"first\" | test ! -e target/break-0\n\
        G1 | check full | the second | test ! -e target/break-1\n\
        G2 | full | strict | test \"$OC_STRICT_MODE$COFFERDAM_RELEASE\" = 11\n";
    fs::write(root.join("scripts/gates.list"), list).unwrap();
    fs::write(root.join(".gitignore"), "/target\n").unwrap();
    fs::create_dir(root.join("target")).unwrap();
    git(root, &["init", "--quiet"]);
    commit(root, "one");
    project
}

fn git(root: &Path, args: &[&str]) {
    let who = ["-c", "user.name=t", "-c", "user.email=t@example.invalid"];
    let status = Command::new("git").current_dir(root).args(who).args(args).status().unwrap();
    assert!(status.success(), "{args:?}");
}

fn commit(root: &Path, text: &str) {
    fs::write(root.join("file"), text).unwrap();
    git(root, &["add", "--all"]);
    git(root, &["commit", "--quiet", "--message", text]);
}

fn lane(root: &Path, name: &str) -> Output {
    let mut command = Command::new(root.join("scripts/gates"));
    command.arg(name).env_remove("OC_STRICT_MODE").env_remove("COFFERDAM_RELEASE");
    command.output().unwrap()
}

/// What `verdict` says of the tree, and its status.
fn verdict(root: &Path) -> (Value, Option<i32>) {
    let output = lane(root, "verdict");
    (serde_json::from_slice(&output.stdout).unwrap(), output.status.code())
}

fn states(verdict: &Value) -> Vec<&str> {
    let gates = verdict["gates"].as_array().unwrap().iter();
    gates.map(|gate| gate["status"].as_str().unwrap()).collect()
}

#[test]
fn a_verdict_is_go_only_where_every_gate_passed_on_this_tree() {
    let project = project();
    let root = project.path();
    assert_eq!(verdict(root).0["verdict"], "NO_GO", "nothing ran");
    // A lane that leaves gates out succeeds as a lane, and is no release.
    assert!(lane(root, "check").status.success());
    let (said, code) = verdict(root);
    assert_eq!((&said["verdict"], code), (&"NO_GO".into(), Some(1)), "{said}");
    assert_eq!(states(&said), ["passed", "passed", "not_run"]);
    let full = lane(root, "full");
    assert!(full.status.success(), "{}", String::from_utf8_lossy(&full.stderr));
    let (said, code) = verdict(root);
    assert_eq!((&said["verdict"], code), (&"GO".into(), Some(0)), "{said}");
    assert_eq!(said["gates"][0]["what"], "the \"first\"");
    // Of a tree that is not committed, or another one, nothing is known.
    fs::write(root.join("file"), "changed").unwrap();
    assert_eq!(verdict(root).1, Some(1));
    assert!(!lane(root, "full").status.success(), "every gate passes, and the tree has no name");
    commit(root, "two");
    assert_eq!(verdict(root).1, Some(1));
}

#[test]
fn a_gate_that_failed_on_a_tree_is_mended_by_a_commit_and_by_no_other_try() {
    let project = project();
    let root = project.path();
    let broken = root.join("target/break-1");
    fs::write(&broken, "").unwrap();
    let red = lane(root, "full");
    assert_eq!(red.status.code(), Some(1), "{}", String::from_utf8_lossy(&red.stderr));
    let (said, _) = verdict(root);
    assert_eq!(states(&said), ["passed", "failed", "not_run"], "{said}");
    assert!(said["why"].as_str().unwrap().contains("G1"), "{said}");
    fs::remove_file(&broken).unwrap();
    let again = lane(root, "full");
    assert!(!again.status.success());
    let (said, _) = verdict(root);
    assert_eq!((&said["verdict"], states(&said)), (&"NO_GO".into(), vec!["passed"; 3]), "{said}");
    assert!(said["why"].as_str().unwrap().contains("failed before"), "{said}");
    commit(root, "mended");
    assert!(lane(root, "full").status.success());
    assert_eq!(verdict(root).1, Some(0));
}

#[test]
fn a_lane_that_is_killed_leaves_no_go() {
    let project = project();
    let root = project.path();
    assert!(lane(root, "full").status.success());
    let list = root.join("scripts/gates.list");
    let text = fs::read_to_string(&list).unwrap();
    // The gate looks at the record while it runs.
    let look = "G3 | full | looks | grep -q '\"verdict\":\"NO_GO\"' target/gates/verdict.json\n";
    fs::write(&list, format!("{text}{look}")).unwrap();
    commit(root, "looks");
    assert!(lane(root, "full").status.success(), "the record said GO before the end");
}

#[test]
fn every_gate_of_the_list_is_a_target_of_make_and_the_ids_are_g0_to_g8() {
    let list = fs::read_to_string(repository().join("scripts/gates.list")).unwrap();
    let makefile = fs::read_to_string(repository().join("Makefile")).unwrap();
    let rows: Vec<Vec<&str>> = list
        .lines()
        .filter(|line| !line.starts_with('#') && !line.is_empty())
        .map(|line| line.split('|').map(str::trim).collect())
        .collect();
    let ids: Vec<&str> = rows.iter().map(|row| row[0]).collect();
    assert_eq!(ids, ["G0", "G1", "G2", "G3", "G4", "G5", "G6", "G7", "G8"]);
    for row in &rows {
        let target = row[3].strip_prefix("make ").unwrap();
        assert!(makefile.contains(&format!("\n{target}:")), "no target {target}");
        assert!(row[1].split(' ').any(|lane| lane == "full"), "{row:?} is not in the lane full");
    }
}
