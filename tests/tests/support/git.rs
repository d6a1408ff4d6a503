//! Git as tests use it: with a name of its own, and nobody's configuration.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use super::said;

/// Git as a person of this test uses it.
pub fn git_in(dir: &Path, args: &[&str], input: &[u8]) -> Output {
    let mut child = Command::new("git")
        .args(["-c", "user.name=t", "-c", "user.email=t@t.example", "-c", "core.quotePath=true"])
        .args(args)
        .current_dir(dir)
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("this test needs git");
    child.stdin.take().unwrap().write_all(input).unwrap();
    child.wait_with_output().unwrap()
}

/// What git answers, which must be good.
pub fn git(dir: &Path, args: &[&str]) -> String {
    let done = git_in(dir, args, b"");
    assert!(done.status.success(), "{args:?}: {}", said(&done));
    String::from_utf8_lossy(&done.stdout).trim_end().to_owned()
}
