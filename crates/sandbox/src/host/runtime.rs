//! Finding the OCI runtime.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use cofferdam_ambient::env;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};

/// In order of preference: crun is three times as fast as runc.
const KNOWN: [&str; 2] = ["crun", "runc"];
/// The one of the class `gvisor`. It is no choice for the class `container`.
const GVISOR: [&str; 1] = ["runsc"];
/// Searched besides `PATH`: service managers often leave the `sbin` directories out.
const PLACES: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// A program that is larger stays on its file system.
const MAX_SEALED: u64 = 4 * 1024 * 1024;

/// An OCI runtime.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Runtime {
    /// `crun`, `runc` or `runsc`.
    pub name: String,
    /// Absolute path of the program.
    pub path: PathBuf,
    /// The first line that it prints about itself.
    pub version: String,
    /// Its program in memory, where that saves time.
    pub sealed: Option<SealedProgram>,
}

/// A program in sealed memory.
///
/// Both runtimes copy themselves there at every start and start once more from the copy, so that no
/// sandbox can write to the program that the host runs as root (CVE-2019-5736). One that is started
/// from sealed memory knows that this is done: with one copy for all sandboxes, a start takes 2 ms less of
/// about 10.
#[derive(Debug, Clone)]
pub struct SealedProgram(Arc<OwnedFd>);

impl PartialEq for SealedProgram {
    fn eq(&self, other: &Self) -> bool {
        self.0.as_raw_fd() == other.0.as_raw_fd()
    }
}

impl Eq for SealedProgram {}

impl SealedProgram {
    /// `None` where the program is large (runc has 12 MB, which every worker would hold), or the
    /// kernel has no such memory: then it is started from its file.
    fn of(path: &Path) -> Option<Self> {
        fs::metadata(path).ok().filter(|found| found.len() <= MAX_SEALED)?;
        let program = fs::read(path).ok()?;
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let mut memory = File::from(memfd_create("runtime", flags).ok()?);
        memory.write_all(&program).ok()?;
        // Exactly these are what the runtimes look for.
        let seals = SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE;
        fcntl_add_seals(&memory, seals).ok()?;
        // Open for writing it could not be executed; a second, read-only handle can.
        let program = File::open(format!("/proc/self/fd/{}", memory.as_raw_fd())).ok()?;
        Some(Self(Arc::new(program.into())))
    }
}

const VERSION: [&str; 1] = ["--version"];

impl Runtime {
    /// Every runtime that works here, the preferred one first. `wanted` is a name or an absolute
    /// path and narrows the choice to it. Each is started to ask for its version, so whoever needs
    /// one only should take no more.
    pub(crate) fn find(wanted: Option<&str>) -> impl Iterator<Item = Self> {
        let names = wanted.map_or_else(|| KNOWN.to_vec(), |name| vec![name]);
        names.into_iter().filter_map(|name| {
            let path = if name.starts_with('/') { Some(name.into()) } else { search(name) };
            Self::ask(&path?, &KNOWN, &VERSION)
        })
    }

    /// Every runtime of the container class that is installed, the preferred one first.
    #[must_use]
    pub fn all() -> Vec<Self> {
        Self::find(None).collect()
    }

    /// What is executed.
    pub(crate) fn program(&self) -> PathBuf {
        match &self.sealed {
            // Resolved by the child, which holds the same number until it executes.
            Some(SealedProgram(memory)) => format!("/proc/self/fd/{}", memory.as_raw_fd()).into(),
            None => self.path.clone(),
        }
    }

    /// Options before `run`.
    pub(crate) fn globals(&self) -> &'static [&'static str] {
        match self.name.as_str() {
            "crun" => &["--cgroup-manager=cgroupfs"],
            // runc's default is the cgroup file system; the flag only exists to choose systemd.
            _ => &[],
        }
    }

    /// Whether it takes a system call filter that is compiled already, which saves it 5 ms at each start.
    pub(crate) fn takes_program(&self) -> bool {
        self.is_crun()
    }

    pub(crate) fn is_crun(&self) -> bool {
        self.name == "crun"
    }

    fn ask(path: &Path, known: &[&str], words: &[&str]) -> Option<Self> {
        let output =
            Command::new(path).args(words).env_clear().stdin(Stdio::null()).output().ok()?;
        if !output.status.success() {
            return None;
        }
        let text = String::from_utf8(output.stdout).ok()?;
        let version = text.lines().next()?.trim().to_owned();
        let name = known.iter().find(|name| version.starts_with(*name))?;
        let sealed = SealedProgram::of(path);
        Some(Self { name: (*name).to_owned(), path: path.to_owned(), version, sealed })
    }
}

/// Any other program that says its version.
pub(crate) fn named(name: &str) -> Option<Runtime> {
    let path = search(name)?;
    let output =
        Command::new(&path).arg("--version").env_clear().stdin(Stdio::null()).output().ok()?;
    let version = String::from_utf8(output.stdout).ok()?.lines().next()?.trim().to_owned();
    Some(Runtime { name: name.to_owned(), path, version, sealed: None })
}

/// runsc, where it is installed and knows the options that a sandbox needs.
pub(crate) fn gvisor() -> Result<Runtime, (String, &'static str)> {
    let [name] = GVISOR;
    let remedy = "apt-get install runsc";
    let path = search(name).ok_or_else(|| ("no runsc was found".to_owned(), remedy))?;
    gvisor_at(&path).map_err(|why| (why, remedy))
}

fn gvisor_at(path: &Path) -> Result<Runtime, String> {
    // An option that it does not know is a start that fails.
    let asked =
        Runtime::ask(path, &GVISOR, &["--pod-init-config=", "--overlay2=none", "--version"]);
    asked.ok_or_else(|| match Runtime::ask(path, &GVISOR, &VERSION) {
        Some(old) => format!(
            "{} is too old: it cannot tell a task's connects, or keep its files on the host",
            old.version
        ),
        None => format!("{} does not say its version", path.display()),
    })
}

/// Where a program is.
pub(crate) fn search(name: &str) -> Option<PathBuf> {
    let path = env::var("PATH").unwrap_or_default();
    path.split(':')
        .chain(PLACES.split(':'))
        .filter(|place| place.starts_with('/'))
        .map(|place| Path::new(place).join(name))
        .find(|candidate| candidate.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Written by another process: a file that this one has open for writing cannot be executed by any.
    const WRITE: &str = "printf '#!/bin/sh\\n%s\\n' \"$2\" > \"$1\" && chmod 755 \"$1\"";

    #[test]
    fn a_runsc_that_cannot_tell_what_we_need_is_none_and_says_which_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("runsc");
        let say = |body: &str| {
            let written =
                Command::new("/bin/sh").args(["-c", WRITE, "sh"]).arg(&path).arg(body).status();
            assert!(written.unwrap().success());
            gvisor_at(&path)
        };
        let able = say("echo runsc version 9").unwrap();
        assert_eq!((able.name.as_str(), able.version.as_str()), ("runsc", "runsc version 9"));
        let old = say("[ \"$1\" = --version ] || exit 2; echo runsc version 1").unwrap_err();
        assert!(old.contains("runsc version 1 is too old"), "{old}");
        let other = say("echo something else").unwrap_err();
        assert!(other.contains("does not say its version"), "{other}");
    }
}
