//! The look for leftovers finds one of each kind, and nothing once they are gone.

use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use cofferdam_tests::leftovers::beneath_mount;
use tempfile::TempDir;

/// Runs the tool; it is told our own name, for other tests of ours run on this host.
fn leftovers(words: &[&str], about: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_leftovers"));
    command.args(words).args(["--about", about]).stdin(Stdio::null()).output().unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// What a careless program leaves behind; taken away when dropped.
struct Mess {
    dir: TempDir,
    group: PathBuf,
    netns: PathBuf,
    child: Child,
    name: String,
    /// Beneath a mount, where the host's trees are mounted on a file system that takes it.
    hidden: Option<(OwnedFd, PathBuf)>,
}

impl Mess {
    fn make() -> Self {
        let dir = tempfile::Builder::new().prefix("cofferdam-mess-").tempdir().unwrap();
        let name = dir.path().file_name().unwrap().to_string_lossy().into_owned();
        run("mount", &["-t", "tmpfs", "none", &dir.path().to_string_lossy()]);
        let group = a_tree().join("cofferdam").join(&name);
        fs::create_dir_all(&group).unwrap();
        let netns = Path::new("/run").join(format!("{name}.netns"));
        fs::write(&netns, "").unwrap();
        run("unshare", &[&format!("--net={}", netns.display()), "true"]);
        // Its argument names our directory, as a runtime's bundle does.
        let inside = dir.path().join("sleeper");
        let child = Command::new("/bin/sh")
            .args(["-c", "sleep 60; :"])
            .arg(inside)
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let hidden = beneath_mount(&a_tree().join("cofferdam"));
        let hidden = hidden.map(|(held, dir)| (held, dir.join(&name)));
        let hidden = hidden.filter(|(_, dir)| fs::create_dir_all(dir).is_ok());
        Self { dir, group, netns, child, name, hidden }
    }
}

impl Drop for Mess {
    fn drop(&mut self) {
        let _ = Command::new("kill").arg(format!("{}", self.child.id())).status();
        let _ = self.child.wait();
        let _ = Command::new("umount").arg(&self.netns).status();
        let _ = fs::remove_file(&self.netns);
        let _ = fs::remove_dir(&self.group);
        if let Some((_, dir)) = &self.hidden {
            let _ = fs::remove_dir(dir);
            let _ = dir.parent().map(fs::remove_dir);
        }
        let _ = Command::new("umount").arg(self.dir.path()).status();
    }
}

fn run(program: &str, words: &[&str]) {
    let status = Command::new(program).args(words).status().unwrap();
    assert!(status.success(), "{program} {words:?}: {status}");
}

/// A mounted tree of cgroups.
fn a_tree() -> PathBuf {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let tree = mounts.lines().find(|line| line.split(' ').nth(2).unwrap().starts_with("cgroup"));
    Path::new(tree.expect("a tree of cgroups").split(' ').nth(1).unwrap()).to_owned()
}

#[test]
fn each_kind_of_leftover_fails_the_look_and_what_was_there_before_does_not() {
    let notes = tempfile::tempdir().unwrap();
    let (clean, dirty) = (notes.path().join("clean"), notes.path().join("dirty"));
    let (clean, dirty) = (clean.to_str().unwrap(), dirty.to_str().unwrap());
    assert!(leftovers(&["keep", clean], "").status.success());
    let mess = Mess::make();
    let name = mess.name.clone();
    let found = leftovers(&["compare", clean, "--now"], &name);
    assert!(!found.status.success(), "{}", said(&found));
    for kind in ["process", "mount", "netns", "cgroup", "file"] {
        let line = format!("leftovers: {kind} ");
        let hit = |text: &str| text.starts_with(&line) && text.contains(&name);
        assert!(said(&found).lines().any(hit), "no {kind}: {}", said(&found));
    }
    let told =
        said(&found).lines().any(|line| line.ends_with(&format!("{name} beneath the mount")));
    assert_eq!(told, mess.hidden.is_some(), "{}", said(&found));
    assert!(leftovers(&["keep", dirty], "").status.success());
    let again = leftovers(&["compare", dirty], &name);
    assert!(again.status.success(), "it was there before: {}", said(&again));
    drop(mess);
    let gone = leftovers(&["compare", clean], &name);
    assert!(gone.status.success(), "{}", said(&gone));
}

#[test]
fn a_note_that_is_not_there_is_no_success() {
    let found = leftovers(&["compare", "/nonexistent/note"], "anything");
    assert!(!found.status.success());
    assert!(said(&found).contains("/nonexistent/note"));
}
