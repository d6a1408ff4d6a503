//! What holds a program that makes machines, before it is that program.
//!
//! ```text
//! setpriv (ends with the worker) -> sh (enters our cgroups)
//!              [ -> unshare (network, processes, mounts, IPC, name)
//!                       -> sh (drops its copies of other sandboxes' mounts)
//!                       -> setpriv (nobody, no capability, no new privileges) -> the program ]
//! ```

use std::path::{Path, PathBuf};

use tokio::process::Command;

use super::kvm;
use crate::host::{cgroup, starter};
use crate::spec::machine::Machine;

/// `nobody` of every Debian system.
pub(super) const USER: &str = "65534";

/// The beginning of a program's command; what it is and what it is told comes behind.
pub(super) struct LauncherCommand<'a> {
    pub machine: &'a Machine,
    /// Ends the list of cgroups that it enters.
    pub groups: &'a [PathBuf],
    /// Redirections that open both files, which the program's user may not look up, and its console.
    pub open: &'a str,
    /// The kernel and the initial files.
    pub files: [&'a Path; 2],
    /// The program, where it makes no file by a name: then it has no directory where all users may, but for one that it lies in.
    pub writes_nothing: Option<&'a Path>,
    /// By what an orphan is found, where nothing that follows names its sandbox.
    pub named: Option<LauncherName<'a>>,
}

/// What names the sandbox of a program.
#[derive(Clone, Copy)]
pub(super) struct LauncherName<'a> {
    pub id: &'a str,
    /// Directory of the sandbox on the host, shown in the process's arguments.
    pub dir: &'a Path,
}

/// Enters the cgroups, which only a process itself can do without a race.
const ENTER: &str =
    "while [ \"$1\" != -- ]; do echo 0 > \"$1\" || exit 125; shift; done; shift; exec";
/// Goes on as what holds the program.
const GO_ON: &str = "|| exit 125; shift 2; exec \"$@\"";
/// Mounts of its own begin as copies of all of ours: what a sandbox wrote would live as long as the machine. The last mounted
/// goes first: one that is detached takes those in it along.
const APART: &str = "all=; while read -r _ _ _ _ at _; do case $at in */sandboxes/sb*/*) \
                     all=\"$at $all\";; esac; done < /proc/self/mountinfo; for at in $all; do \
                     umount -l \"$(printf %b \"$at\")\" || exit 125; done;";
/// What all users may write in is empty for it, and read-only: what a taken-over emulator left there would outlive its machine,
/// and those of other tenants run as the same user.
const OPEN_TO_ALL: [&str; 5] = ["/dev/mqueue", "/dev/shm", "/run/lock", "/tmp", "/var/tmp"];
/// Drops a sandbox's name and directory, which only mark the process, and goes on.
const NAMED: &str = "shift 2; exec \"$@\"";

/// What shows nothing at these places to a program.
fn masks(program: &Path) -> String {
    let all = OPEN_TO_ALL.into_iter().filter(|at| !program.starts_with(at));
    let all: Vec<&str> = all.collect();
    format!(
        "for at in {}; do [ ! -d $at ] || [ -L $at ] || \
         mount -t tmpfs -o ro,size=4k,mode=555 none $at || exit 125; done;",
        all.join(" ")
    )
}

pub(super) fn command(hold: &LauncherCommand<'_>) -> Command {
    let LauncherCommand { machine, groups, open, files, writes_nothing, named } = hold;
    let masks = writes_nothing.map(masks).unwrap_or_default();
    let mut command = starter::shell(&format!("{ENTER} {open} {GO_ON}"));
    command.args(groups.iter().map(|group| cgroup::entrance(group))).arg("--").args(files);
    command
        .arg(&machine.unshare)
        .args(["--net", "--ipc", "--uts", "--mount", "--pid", "--fork", "--kill-child"])
        .args(["--mount-proc", "--", "/bin/sh", "-c"])
        .args([&format!("{APART} {masks} exec \"$@\""), "sh"]);
    if let Some(LauncherName { id, dir }) = named {
        command.args(["/bin/sh", "-c", NAMED, "sh", id]).arg(dir);
    }
    command
        .arg(&machine.setpriv)
        .args(["--reuid", USER, "--regid", USER, "--no-new-privs"])
        // Not of unshare: a change of the user undoes what it asked the kernel for.
        .args(["--pdeathsig", "KILL"])
        .args(["--bounding-set=-all", "--inh-caps=-all"]);
    match kvm::group(&machine.accel) {
        Some(group) => command.args(["--groups", &group.to_string()]),
        None => command.arg("--clear-groups"),
    };
    command.arg("--");
    command
}
