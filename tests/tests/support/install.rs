//! What tests install once for all, from registries and mirrors that may be silent.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use nix::sys::signal::{Signal, killpg};
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

/// Runs a program to its end, which comes after ten minutes at the latest, with all that it started.
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
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let mut child = command.spawn().map_err(|error| format!("{program}: {error}"))?;
    let group = Pid::from_raw(i32::try_from(child.id()).unwrap());
    let (mut out, mut err) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
    let errors = thread::spawn(move || words(&mut err));
    let (done, end) = mpsc::channel();
    let ended = thread::spawn(move || {
        let said = words(&mut out) + &errors.join().unwrap_or_default();
        let status = child.wait();
        let _ = done.send(());
        (status, said)
    });
    let is_late = end.recv_timeout(limit).is_err();
    if is_late {
        let _ = killpg(group, Signal::SIGKILL);
    }
    let (status, said) = ended.join().unwrap();
    match status {
        _ if is_late => Err(format!("{program} did not end within {limit:?}: {said}")),
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{program}: {status}: {said}")),
        Err(error) => Err(format!("{program}: {error}: {said}")),
    }
}

/// An npm that installs packages below a directory.
pub fn npm(dir: &Path, packages: &[&str]) -> Command {
    let mut npm = Command::new("npm");
    npm.args(["install", "--no-audit", "--no-fund", "--no-save", "--loglevel=error", "--prefix"]);
    npm.arg(dir).args(packages);
    npm
}

fn words(from: &mut impl Read) -> String {
    let mut bytes = Vec::new();
    let _ = from.read_to_end(&mut bytes);
    String::from_utf8_lossy(&bytes).into_owned()
}

#[test]
fn what_cannot_be_installed_is_tried_once_and_ends_with_all_that_it_started() {
    let dir = tempfile::tempdir().unwrap();
    let mut tried = 0;
    let mut install = |wanted: &str| {
        let made = once(dir.path(), wanted, dir.path(), || {
            tried += 1;
            let mut silent = Command::new("sh");
            silent.args(["-c", "echo begun; sleep 600 & sleep 600"]);
            run_within(silent, Duration::from_millis(300))
        });
        (made.err(), tried)
    };
    let (why, count) = install("a");
    assert!(why.unwrap().contains("sh did not end within 300ms: begun"), "{count}");
    let (again, count) = install("a");
    assert!(again.unwrap().contains("tried within the hour") && count == 1);
    assert_eq!(install("b").1, 2, "something else is tried");
    drop(once(dir.path(), "c", dir.path(), || Ok(())).unwrap());
    once(dir.path(), "c", dir.path(), || panic!("it is there")).unwrap();
}
