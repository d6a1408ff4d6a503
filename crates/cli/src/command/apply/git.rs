//! Git on the host of whoever applies, so that nothing a repository says is executed.
//!
//! Its configuration may name hooks, a file system monitor, filters, helpers and transports. The environment is made
//! anew, configuration outside the repository is not read, what could start a program is switched off on the command
//! line (which wins over every file), and objects are made by a directory of our own whose configuration is ours.
//! Commands that filter, diff by attributes, check out or fetch are not used at all.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::Write as _;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use anyhow::Context;
use cofferdam_ambient::env;
use cofferdam_contracts::id::Digest;
use cofferdam_contracts::patch::GitId;
use cofferdam_contracts::printable;
use rustix::process::{Pid, Signal, kill_process};

use super::super::exit::{Misuse, Negative};

/// What wins over every configuration file.
const SETTINGS: &[&str] = &[
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "core.attributesFile=/dev/null",
    "core.excludesFile=/dev/null",
    "core.alternateRefsCommand=false",
    "core.sshCommand=false",
    "core.gitProxy=false",
    "core.askPass=false",
    "core.editor=false",
    "core.pager=cat",
    "core.protectHFS=true",
    "core.protectNTFS=true",
    "core.sparseCheckout=false",
    "core.splitIndex=false",
    "core.untrackedCache=false",
    "credential.helper=",
    "diff.external=",
    "gc.auto=0",
    "maintenance.auto=false",
    "protocol.allow=never",
    "commit.gpgSign=false",
    "trace2.normalTarget=0",
    "trace2.perfTarget=0",
    "trace2.eventTarget=0",
];
/// Time of one command: a repository may have git read what never ends, such as a pipe that its configuration includes.
const LONGEST: Duration = Duration::from_secs(60);
/// Bytes of git's own words that a message repeats.
const MAX_WORDS: usize = 512;

/// A repository of this host.
#[derive(Debug)]
pub(super) struct Repository {
    /// Where its references are.
    git_dir: PathBuf,
    /// Where its objects are, shared by its working trees.
    pub common: PathBuf,
    pub objects: PathBuf,
    format: String,
}

/// A variable of one command besides the fixed ones.
#[derive(Debug, Clone, Copy)]
pub(super) struct Variable<'a> {
    pub name: &'a str,
    pub value: &'a OsStr,
}

impl Repository {
    /// The repository of a directory. One that another user owns is refused.
    pub(super) fn find(dir: &Path) -> anyhow::Result<Self> {
        let dir = absolute(dir)?;
        let ask = |what: &[&str]| -> anyhow::Result<OsString> {
            let mut args = vec![OsStr::new("-C"), dir.as_os_str(), OsStr::new("rev-parse")];
            args.extend(what.iter().map(OsStr::new));
            let output = git(&args, &[], &[])?;
            if !output.status.success() {
                let why = format!("{} is not a repository: {}", dir.display(), words(&output));
                return Err(Misuse(why).into());
            }
            Ok(line(output.stdout))
        };
        let path = |what: &[&str]| ask(what).map(PathBuf::from);
        let git_dir = path(&["--absolute-git-dir"])?;
        let common = path(&["--path-format=absolute", "--git-common-dir"])?;
        let objects = path(&["--path-format=absolute", "--git-path", "objects"])?;
        let format = ask(&["--show-object-format"])?.to_string_lossy().into_owned();
        let own = rustix::process::geteuid().as_raw();
        for place in [&git_dir, &common, &objects] {
            let found =
                fs::metadata(place).with_context(|| format!("cannot read {}", place.display()))?;
            if found.uid() != own {
                let why =
                    format!("{} belongs to another user; apply as its owner", place.display());
                return Err(Negative(why).into());
            }
        }
        Ok(Self { git_dir, common, objects, format })
    }

    /// Refuses symbolic links in git's directory where a reference, its log or an object would be written: git follows
    /// them out of the repository.
    pub(super) fn no_links(&self, name: &str) -> anyhow::Result<()> {
        let mut places = Vec::new();
        for top in ["", "logs"] {
            let mut place = self.common.join(top);
            places.push(place.clone());
            for part in name.split('/') {
                place.push(part);
                places.push(place.clone());
            }
        }
        places.push(self.objects.clone());
        for entry in fs::read_dir(&self.objects)? {
            places.push(entry?.path());
        }
        for place in places {
            let is_link = fs::symlink_metadata(&place).is_ok_and(|found| found.is_symlink());
            if is_link {
                let why = format!("{} is a symbolic link; replace it", place.display());
                return Err(Negative(why).into());
            }
        }
        Ok(())
    }

    /// For the receipt.
    pub(super) fn shown(&self) -> String {
        String::from_utf8_lossy(self.common.as_os_str().as_bytes()).into_owned()
    }

    fn dir_variable(&self) -> Variable<'_> {
        Variable { name: "GIT_DIR", value: self.git_dir.as_os_str() }
    }

    /// Runs git on this repository.
    fn git(&self, args: &[&str]) -> anyhow::Result<Output> {
        let args: Vec<&OsStr> = args.iter().map(OsStr::new).collect();
        git(&args, &[self.dir_variable()], &[])
    }

    /// What the branch is called among the references, if it may be written: its name is one, it is checked out
    /// nowhere, it leads nowhere else, and the base commit is there.
    pub(super) fn may_take(&self, branch: &str, base: &GitId) -> anyhow::Result<String> {
        let name = format!("refs/heads/{branch}");
        let shown = printable::line(branch).into_owned();
        if branch.starts_with('-') || !self.git(&["check-ref-format", &name])?.status.success() {
            return Err(Misuse(format!("{shown:?} is not a branch name")).into());
        }
        if self.format != base.format().as_str() {
            let format = base.format().as_str();
            let why = format!("the patch has {format} ids, and the repository {}", self.format);
            return Err(Negative(why).into());
        }
        let trees = self.git(&["worktree", "list", "--porcelain", "-z"])?;
        let wanted = format!("branch {name}");
        if trees.stdout.split(|byte| *byte == 0).any(|line| line == wanted.as_bytes()) {
            let why = format!("branch {shown} is checked out; name another with --branch");
            return Err(Negative(why).into());
        }
        if self.git(&["symbolic-ref", "-q", &name])?.status.success() {
            let why = format!("branch {shown} is a symbolic reference; name another with --branch");
            return Err(Negative(why).into());
        }
        Ok(name)
    }

    /// The commit that the repository is at.
    pub(super) fn head(&self) -> anyhow::Result<GitId> {
        self.commit("HEAD")?.ok_or_else(|| {
            Negative("the repository has no commit to write the patch upon".to_owned()).into()
        })
    }

    /// The commit that a branch, a tag or another name of git's means here.
    pub(super) fn commit(&self, name: &str) -> anyhow::Result<Option<GitId>> {
        let name = format!("{name}^{{commit}}");
        let args = ["rev-parse", "--verify", "-q", "--end-of-options", &name];
        let output = self.git(&args)?;
        Ok(GitId::parse(&line(output.stdout).to_string_lossy()).ok())
    }

    /// Refuses a branch that is there and was not made of this patch: no person is asked in vain.
    pub(super) fn may_hold(&self, name: &str, patch: &Digest) -> anyhow::Result<()> {
        let Some(at) = self.at(name)? else { return Ok(()) };
        let commit = self.git(&["cat-file", "commit", &at])?;
        let ours = format!("Patch: sha256:{patch}");
        match commit.stdout.split(|byte| *byte == b'\n').any(|line| line == ours.as_bytes()) {
            true => Ok(()),
            false => Err(taken(name, &at)),
        }
    }

    /// Where a reference is.
    pub(super) fn at(&self, name: &str) -> anyhow::Result<Option<String>> {
        let output = self.git(&["show-ref", "--verify", "--hash", name])?;
        let id = line(output.stdout).to_string_lossy().into_owned();
        Ok(Some(id).filter(|_| output.status.success()))
    }

    /// Makes a reference that is not there yet: at once or not at all.
    pub(super) fn create(&self, name: &str, commit: &GitId, log: &str) -> anyhow::Result<Output> {
        let none = commit.format().none();
        let identity = [
            self.dir_variable(),
            Variable { name: "GIT_COMMITTER_NAME", value: OsStr::new("Cofferdam") },
            Variable { name: "GIT_COMMITTER_EMAIL", value: OsStr::new("cofferdam@localhost") },
        ];
        let args = ["update-ref", "--no-deref", "-m", log, name, commit.as_str(), &none];
        git(&args.map(OsStr::new), &identity, &[])
    }
}

/// The refusal of a branch that was there before.
pub(super) fn taken(name: &str, at: &str) -> anyhow::Error {
    let branch = name.strip_prefix("refs/heads/").unwrap_or(name);
    Negative(format!("branch {branch} is at {at} already; name another with --branch")).into()
}

/// Runs git in `/` with these variables and this input, and nothing else of this process's environment.
pub(super) fn git(
    args: &[&OsStr],
    variables: &[Variable<'_>],
    input: &[u8],
) -> anyhow::Result<Output> {
    let mut command = Command::new("git");
    command.env_clear().env("PATH", path()).current_dir("/");
    for (name, value) in [
        ("LC_ALL", "C"),
        ("GIT_CONFIG_NOSYSTEM", "1"),
        ("GIT_CONFIG_SYSTEM", "/dev/null"),
        ("GIT_CONFIG_GLOBAL", "/dev/null"),
        ("GIT_ATTR_NOSYSTEM", "1"),
        ("GIT_TERMINAL_PROMPT", "0"),
        ("GIT_NO_REPLACE_OBJECTS", "1"),
        ("GIT_NO_LAZY_FETCH", "1"),
        ("GIT_OPTIONAL_LOCKS", "0"),
        ("GIT_ALLOW_PROTOCOL", ""),
    ] {
        command.env(name, value);
    }
    for setting in SETTINGS {
        command.args(["-c", setting]);
    }
    command.args(args).envs(variables.iter().map(|one| (one.name, one.value)));
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = match command.spawn() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Err(absent()),
        spawned => spawned.context("cannot run git")?,
    };
    let stdin = child.stdin.take();
    let pid = Pid::from_child(&child);
    std::thread::scope(|scope| {
        // Beside the reading: a command that answers before it has read all would wait for us.
        scope.spawn(move || stdin.map(|mut stdin| stdin.write_all(input)));
        let (ended, end) = mpsc::channel();
        scope.spawn(move || ended.send(child.wait_with_output()));
        match end.recv_timeout(LONGEST) {
            Ok(output) => output.context("git did not end"),
            Err(_) => {
                // Not waited for yet, so the pid is still git's.
                let _ = kill_process(pid, Signal::KILL);
                anyhow::bail!("git did not end within {} s", LONGEST.as_secs())
            }
        }
    })
}

/// Git writes what `apply` writes, and nothing else here needs it.
fn absent() -> anyhow::Error {
    let why = "this host has no git, and nothing was written: install git, or take the patch to a host that has it \
               (cofferdam patch RUN > changes.patch; git am changes.patch)";
    Negative(why.to_owned()).into()
}

/// A path that the user names, absolute.
fn absolute(path: &Path) -> anyhow::Result<PathBuf> {
    path.canonicalize()
        .with_context(|| format!("cannot find the repository {}", path.display()))
        .map_err(|error| Misuse(format!("{error:#}")).into())
}

/// The absolute directories of the search path: a relative one could lie in the repository.
fn path() -> OsString {
    let given = env::var_os("PATH").unwrap_or_default();
    let dirs = given.as_bytes().split(|byte| *byte == b':').filter(|dir| dir.starts_with(b"/"));
    OsString::from_vec(dirs.collect::<Vec<_>>().join(&b':'))
}

/// A line of git's without its end.
pub(super) fn line(mut bytes: Vec<u8>) -> OsString {
    if bytes.last() == Some(&b'\n') {
        bytes.pop();
    }
    OsString::from_vec(bytes)
}

/// What git said went wrong.
pub(super) fn words(output: &Output) -> String {
    let said = output.stderr.get(..MAX_WORDS).unwrap_or(&output.stderr);
    printable::line(String::from_utf8_lossy(said).trim()).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::chown;

    /// As in decision 0090: a repository that another user owns may name what its owner wants.
    #[test]
    fn a_repository_of_another_user_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let made = Command::new("git").arg("-C").arg(dir.path()).args(["init", "--quiet"]).status();
        assert!(made.unwrap().success());
        Repository::find(dir.path()).unwrap();
        let other = Some(rustix::process::geteuid().as_raw() + 1);
        let objects = dir.path().join(".git/objects");
        // Only root gives files away; the suite runs as root.
        match chown(&objects, other, None) {
            Err(_) => assert!(!rustix::process::geteuid().is_root()),
            Ok(()) => {
                let refused = Repository::find(dir.path()).unwrap_err().to_string();
                assert!(refused.contains("another user"), "{refused}");
                chown(dir.path().join(".git"), other, None).unwrap();
                let refused = Repository::find(dir.path()).unwrap_err().to_string();
                assert!(
                    refused.contains("another user") || refused.contains("ownership"),
                    "{refused}"
                );
            }
        }
    }
}
