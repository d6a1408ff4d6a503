//! What tests install once for all, from registries and mirrors that may be silent.

use std::fs::{self, File};
use std::io::{Read as _, Seek as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;

/// A registry that says nothing for so long says nothing.
const LIMIT: Duration = Duration::from_secs(600);
/// How long what failed is not tried again: a silent mirror costs a suite one limit, and not one for each test.
const FAILED: Duration = Duration::from_secs(3_600);

/// Has `make` fill a directory, unless it holds `what`, and that is what is wanted. Whoever else wants it waits until the lock is dropped.
///
/// # Errors
/// Why it cannot be had, which is remembered.
pub fn once(
    dir: &Path,
    wanted: &str,
    what: &Path,
    make: impl FnOnce() -> Result<(), String>,
) -> Result<File, String> {
    fs::create_dir_all(dir).unwrap();
    let lock = File::create(dir.join("lock")).unwrap();
    lock.lock().unwrap();
    let (done, failed) = (dir.join("installed"), dir.join("failed"));
    if fs::read_to_string(&done).is_ok_and(|text| text == wanted) && what.exists() {
        return Ok(lock);
    }
    if let Some(why) = failure(&failed, wanted) {
        return Err(format!(
            "{why}\n(tried within the hour; without {} it is tried again)",
            failed.display()
        ));
    }
    let _ = fs::remove_file(&done);
    if let Err(why) = make() {
        fs::write(&failed, format!("{wanted}\n{why}")).unwrap();
        return Err(why);
    }
    let _ = fs::remove_file(&failed);
    fs::write(&done, wanted).unwrap();
    Ok(lock)
}

/// Why the same could not be had within the hour.
fn failure(failed: &Path, wanted: &str) -> Option<String> {
    let since = fs::metadata(failed).ok()?.modified().ok()?.elapsed().unwrap_or_default();
    let text = fs::read_to_string(failed).ok()?;
    let why = text.strip_prefix(wanted)?.strip_prefix('\n')?;
    (since < FAILED).then(|| why.to_owned())
}

/// Runs a program to its end, which comes after ten minutes at the latest, with its process group.
///
/// # Errors
/// That it cannot start, failed or was ended, with what it said.
pub fn run(command: Command) -> Result<(), String> {
    run_within(command, LIMIT)
}

/// The same with a limit of its own.
///
/// # Errors
/// As those of [`run`].
pub fn run_within(mut command: Command, limit: Duration) -> Result<(), String> {
    let program = command.get_program().to_string_lossy().into_owned();
    // A file, since a pipe stays open as long as any process has it, in whatever group.
    let mut output = tempfile::tempfile().unwrap();
    command.stdin(Stdio::null()).process_group(0);
    command.stdout(output.try_clone().unwrap()).stderr(output.try_clone().unwrap());
    let mut child = command.spawn().map_err(|error| format!("{program}: {error}"))?;
    let deadline = Instant::now() + limit;
    let status = loop {
        match child.try_wait().unwrap() {
            Some(status) => break Some(status),
            None if Instant::now() >= deadline => break None,
            None => thread::sleep(Duration::from_millis(50)),
        }
    };
    if status.is_none() {
        let _ = killpg(Pid::from_raw(i32::try_from(child.id()).unwrap()), Signal::SIGKILL);
        child.wait().unwrap();
    }
    let mut said = Vec::new();
    output.rewind().unwrap();
    output.read_to_end(&mut said).unwrap();
    let said = String::from_utf8_lossy(&said);
    match status {
        Some(status) if status.success() => Ok(()),
        Some(status) => Err(format!("{program}: {status}: {said}")),
        None => Err(format!("{program} did not end within {limit:?}: {said}")),
    }
}

/// An npm that installs packages below a directory.
pub fn npm(dir: &Path, packages: &[&str]) -> Command {
    let mut npm = Command::new("npm");
    npm.args(["install", "--no-audit", "--no-fund", "--no-save", "--loglevel=error", "--prefix"]);
    npm.arg(dir).args(packages);
    npm
}

#[test]
fn what_cannot_be_installed_is_tried_once_and_ends_whatever_it_started() {
    let dir = tempfile::tempdir().unwrap();
    let pid = dir.path().join("pid");
    // One that left the group has its output, too.
    let leaver = format!("setsid sh -c 'echo $$ >{0}; exec sleep 600' &\n", pid.display());
    let wait = format!("until [ -s {} ]; do sleep 0.01; done", pid.display());
    let script = format!("{leaver}{wait}\necho begun; sleep 600 & sleep 600");
    let mut tried = 0;
    let mut install = |wanted: &str| {
        let made = once(dir.path(), wanted, dir.path(), || {
            tried += 1;
            let mut silent = Command::new("sh");
            silent.args(["-c", &script]);
            let ended = run_within(silent, Duration::from_secs(2));
            let left: i32 = fs::read_to_string(&pid).unwrap().trim().parse().unwrap();
            kill(Pid::from_raw(left), Signal::SIGKILL).expect("it outlived the rest");
            fs::remove_file(&pid).unwrap();
            ended
        });
        (made.err(), tried)
    };
    let (why, count) = install("a");
    assert!(why.unwrap().contains("sh did not end within 2s: begun"), "{count}");
    let (again, count) = install("a");
    assert!(again.unwrap().contains("tried within the hour") && count == 1);
    assert_eq!(install("b").1, 2, "something else is tried");
    drop(once(dir.path(), "c", dir.path(), || Ok(())).unwrap());
    once(dir.path(), "c", dir.path(), || panic!("it is there")).unwrap();
}
