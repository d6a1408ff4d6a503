//! What is published: who can read what the Debian package installs, and what its name says of its tests.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;

use cofferdam_tests::not_run::not_run;
use cofferdam_tests::repository;
use nix::unistd::{Group, geteuid};

use crate::archive::PAGES;

/// The password of a fleet's database stands in it.
const SETTINGS: &str = "etc/default/cofferdam";

#[test]
fn the_package_keeps_its_settings_from_other_users() {
    if Command::new("dpkg-deb").arg("--version").output().is_err() {
        return not_run("dpkg-deb", "it is not installed");
    }
    let out = tempfile::tempdir().unwrap();
    let dist = out.path().join("dist");
    // Any program will do for what this looks at; it is small.
    let mut command = Command::new(repository().join("scripts/dist"));
    let output = command.args(["--binary", "/bin/true", "--out"]).arg(&dist).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let files = fs::read_dir(&dist).unwrap().map(|entry| entry.unwrap().path());
    let package = files.into_iter().find(|path| path.extension().is_some_and(|e| e == "deb"));
    let listed = Command::new("dpkg-deb").arg("--contents").arg(package.unwrap()).output().unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    let line = listed.lines().find(|line| line.ends_with(SETTINGS)).unwrap();
    assert!(line.starts_with("-rw-r----- root/root "), "{line}");
}

fn configured(root: &Path) {
    let mut command = Command::new("sh");
    command.arg(repository().join("packaging/postinst")).args(["configure", "0.1.0"]);
    let output = command.env("DPKG_ROOT", root).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// dpkg gives a file of settings the mode that it had.
#[test]
fn an_upgrade_takes_settings_from_other_users_and_loosens_none() {
    if !geteuid().is_root() {
        return not_run("root", "a package is installed by root");
    }
    let root = tempfile::tempdir().unwrap();
    let settings = root.path().join(SETTINGS);
    let old = root.path().join(format!("{SETTINGS}.dpkg-old"));
    fs::create_dir_all(settings.parent().unwrap()).unwrap();
    configured(root.path());
    for (before, after) in [(0o644, 0o640), (0o640, 0o640), (0o600, 0o600), (0o666, 0o640)] {
        for file in [&settings, &old] {
            fs::write(file, "DATABASE_URL=postgres://u:secret@h/d\n").unwrap();
            fs::set_permissions(file, Permissions::from_mode(before)).unwrap();
        }
        configured(root.path());
        for file in [&settings, &old] {
            let found = fs::metadata(file).unwrap();
            assert_eq!(found.mode() & 0o7777, after, "{before:o} {}", file.display());
            let group =
                Group::from_name("cofferdam").unwrap().map_or(0, |group| group.gid.as_raw());
            assert_eq!((found.uid(), found.gid()), (0, group));
        }
    }
}

/// A repository of its own with what `scripts/dist` reads, committed.
fn project() -> tempfile::TempDir {
    let project = tempfile::tempdir().unwrap();
    let root = project.path();
    for dir in ["scripts", "packaging"] {
        fs::create_dir(root.join(dir)).unwrap();
        for entry in fs::read_dir(repository().join(dir)).unwrap() {
            let from = entry.unwrap().path();
            fs::copy(&from, root.join(dir).join(from.file_name().unwrap())).unwrap();
        }
    }
    let others =
        ["Cargo.toml", "Cargo.lock", ".gitignore", "docs/operations.md", "examples/hello.yaml"];
    for file in others.into_iter().chain(PAGES) {
        fs::create_dir_all(root.join(file).parent().unwrap()).unwrap();
        fs::copy(repository().join(file), root.join(file)).unwrap();
    }
    let binary = root.join("target/published/cofferdam");
    fs::create_dir_all(binary.parent().unwrap()).unwrap();
    fs::copy("/bin/true", &binary).unwrap();
    git(root, &["init", "--quiet"]);
    committed(root);
    project
}

fn git(root: &Path, args: &[&str]) -> String {
    let who = ["-c", "user.name=t", "-c", "user.email=t@example.invalid"];
    let mut command = Command::new("git");
    let output = command.current_dir(root).args(who).args(args).output().unwrap();
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn committed(root: &Path) {
    git(root, &["add", "--all"]);
    git(root, &["commit", "--quiet", "--message", "a state"]);
}

/// What `make test` leaves where all tests passed; they began on this tree.
fn tested(root: &Path, tree: &str) {
    let script = format!(". scripts/tested.sh; tested '{tree}'");
    let mut command = Command::new("bash");
    command.args(["-euo", "pipefail", "-c", &script]).current_dir(root);
    assert!(command.status().unwrap().success());
}

/// Names of what was made, but for the sums.
fn made(root: &Path) -> Vec<String> {
    let mut command = Command::new(root.join("scripts/dist"));
    let output = command.env_remove("CARGO_TARGET_DIR").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let files = fs::read_dir(root.join("target/dist")).unwrap();
    let mut names: Vec<String> =
        files.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    let verdict = fs::read_to_string(root.join("target/dist/verdict.json")).unwrap();
    assert!(verdict.contains("\"verdict\":\"NO_GO\""), "no gate ran here: {verdict}");
    names.retain(|name| name != "SHA256SUMS" && name != "verdict.json");
    names.sort();
    names
}

#[test]
fn what_did_not_pass_its_tests_on_this_very_tree_is_named_unverified() {
    for (program, args) in [("dpkg-deb", ["--version"]), ("git", ["--version"])] {
        if Command::new(program).args(args).output().is_err() {
            return not_run(program, "it is not installed");
        }
    }
    let project = project();
    let root = project.path();
    let tree = |root: &Path| git(root, &["rev-parse", "HEAD^{tree}"]).trim().to_owned();
    let is_verified = |what: &str, wanted: bool| {
        let names = made(root);
        assert_eq!(names.len(), 2, "{what}: {names:?}");
        for name in names {
            assert_eq!(!name.contains("-unverified."), wanted, "{what}: {name}");
        }
    };
    is_verified("never tested", false);
    tested(root, &tree(root));
    is_verified("tested", true);
    // Another state of a file that is committed, of the lock, and one that is not committed at all.
    for (file, what) in
        [("README.md", "changed"), ("Cargo.lock", "other crates"), ("new", "a new file")]
    {
        fs::write(root.join(file), "x\n").unwrap();
        is_verified(what, false);
        tested(root, &tree(root));
        is_verified("tested with changes that are not committed", false);
        committed(root);
        is_verified("committed and not tested", false);
        tested(root, &tree(root));
        is_verified("committed and tested", true);
    }
    // Tests that began on another tree say nothing of this one.
    let before = tree(root);
    fs::write(root.join("new"), "y\n").unwrap();
    committed(root);
    tested(root, &before);
    is_verified("changed while it was tested", false);
}
