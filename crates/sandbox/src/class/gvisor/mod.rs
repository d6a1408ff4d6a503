//! The class `gvisor`: runsc as it is started here.
//!
//! ```text
//! setpriv (it ends with the worker)
//! -> our cgroup [ sh -> runsc run (attached) -> runsc-gofer   opens files, in a mount namespace
//!                                         -> runsc-sandbox the kernel of the task, in an empty
//!                                              |           network namespace, as nobody
//!                                              stubs       one process for each address space ]
//! ```
//! Everything is born in the cgroups that we make, so the limits hold for the kernel, its files and
//! its memory alike, and what they counted can be read when the kernel is gone: memory that runs
//! out takes the whole sandbox along. The kernel tells each connect of the task: see `connects`.

mod connects;
mod memory;
mod operations;

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tokio::process::Command;

use crate::class::memory_support::MemorySupport;
use crate::host::cgroup;
use crate::host::guest::AGENT_PIDS;
use crate::host::limit;
use crate::host::process::Process;
use crate::host::processors;
use crate::host::starter;
use crate::host::traces::Traces;
use crate::oci::OciInput;
use crate::oci::calls::{self, EPERM};
use crate::spec::plan::Plan;

pub(crate) use operations::CLASS;

/// The kernel, its file server and the runtime need about 50 MiB before the task has any: with less
/// the sandbox would not start, and that is not what a limit is for.
const MIN_MEM_MB: u64 = 96;
/// Host threads of runsc's three programs: about 35 are seen, and Go starts more under load.
const OWN_PIDS: u64 = 128;
/// Threads of the kernel besides those that wait for the task's.
const KERNEL_THREADS: u64 = 32;
/// Host threads of one sandbox: a quarter of the pids that a kernel has by default. A sandbox that
/// needs more is ended, as by any other limit of the host.
const MAX_HOST_PIDS: u64 = 8_192;
/// Processes that a task may ask for: each costs 6 threads of the host at rest.
const MAX_PIDS: u64 = 1_024;

/// Since May 2023 runsc runs tasks in another way (systrap) than by ptrace.
const STEADY_FROM: &str = "20230501";

/// Where runsc looks for groups, and the trees of version 1 without which it begins nothing.
const GROUPS: &str = "/sys/fs/cgroup";
const LIMITING: [&str; 3] = ["memory", "cpu", "pids"];

/// Pid of the agent inside the sandbox.
const AGENT_PID: u32 = 1;

/// Enters the cgroups, which only a process itself can do without a race, and becomes runsc.
const ENTER: &str = "while [ \"$1\" != -- ]; do echo 0 > \"$1\" || exit 125; shift; done; shift; \
                     exec \"$@\"";

/// Makes the configuration one of runsc.
pub(crate) fn config(mut config: Value, wanted: &OciInput<'_>) -> Value {
    // Where nothing is mounted there, runsc mounts a tmpfs of its own, which the size of the
    // writable layer would not bound. What is bound is mounted beside the root (`HostLayout::binds_tmp`): a path
    // below that would be a tenant's to lead anywhere on the host.
    let tmp = json!({"destination": "/tmp", "type": "bind", "source": wanted.beside,
                     "options": ["rbind", "rw", "nosuid", "nodev"]});
    if let Some(Value::Array(mounts)) = config.get_mut("mounts") {
        mounts.push(tmp);
    }
    let pids = wanted.limits.pids.unwrap_or(0) + AGENT_PIDS;
    if let Some(Value::Array(rlimits)) = config.pointer_mut("/process/rlimits") {
        rlimits.push(json!({"type": "RLIMIT_NPROC", "soft": pids, "hard": pids}));
    }
    if let Some(filter) = config.pointer_mut("/linux/seccomp") {
        // A call that is refused on the host's kernel reaches gVisor's own here, which has none of its dangers:
        // what stays refused is what no task needs. `clone3` is not: an older runsc has one errno for every rule,
        // and only ENOSYS makes a library fall back to `clone`.
        *filter = calls::refusals(wanted.needs);
    }
    if let Some(Value::Array(rules)) = config.pointer_mut("/linux/seccomp/syscalls") {
        rules.extend(spare_the_agent());
    }
    config
}

/// On Linux the first process of a namespace takes no signal from it that it did not ask for; in
/// gVisor any of root's processes may kill it.
fn spare_the_agent() -> Vec<Value> {
    let names = ["kill", "tkill", "tgkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo"];
    let denied = |names: &[&str], args: Value| json!({"names": names, "action": "SCMP_ACT_ERRNO", "errnoRet": EPERM, "args": args});
    let first = json!([{"index": 0, "value": AGENT_PID, "op": "SCMP_CMP_EQ"}]);
    // The handle of a process could be the agent's, and a filter cannot see whose it is.
    let mut handles = denied(&["pidfd_send_signal"], json!([]));
    if let Value::Object(fields) = &mut handles {
        fields.remove("args");
    }
    vec![denied(&names, first), handles]
}

/// What it does less well than the class `container`.
pub(crate) fn weak() -> String {
    format!(
        "processes are counted for each user of the sandbox; their sum has only the host's own bound \
         of at most {MAX_HOST_PIDS} threads, which ends the sandbox"
    )
}

/// The oldest runsc whose kept memory was seen to start again and again (decision 0115).
const MEMORY_FROM: &str = "20240729";

/// When a runsc was made, as its version says: `YYYYMMDD`. Pure.
fn made(version: &str) -> Option<&str> {
    version.split(|c: char| !c.is_ascii_digit()).find(|digits| digits.len() == 8)
}

/// Whether pauses keep memory with this runsc. `asked`: the operator's word, 1 or 0. Pure.
fn kept_memory(version: &str, asked: Option<&str>) -> MemorySupport {
    let (is_kept, why) = match (asked, made(version)) {
        (Some(word @ ("0" | "1")), _) => {
            (word == "1", format!("{} is set to {word}", operations::MEMORY))
        }
        (_, Some(date)) if date >= MEMORY_FROM => {
            (true, format!("tried with runsc from {MEMORY_FROM} on"))
        }
        _ => (
            false,
            format!(
                "runsc before {MEMORY_FROM} stops now and then on a busy host; {}=1 keeps memory with it too",
                operations::MEMORY
            ),
        ),
    };
    MemorySupport { is_kept, why }
}

/// What is known of a version of runsc. Codex stopped in Debian 12's in 5 of 110 runs on a busy host, in Debian 13's in none of 52
/// (decision 0109).
fn unsteady(version: &str) -> Option<String> {
    (made(version)? < STEADY_FROM).then(|| {
        format!(
            "{version} stops now and then on a busy host, until its task's time limit, and refuses `ls` (Invalid \
             argument: a flag that it does not know); one of July 2024, as in Debian 13, knows it and was not seen to stop"
        )
    })
}

/// Threads of the host for this many of the task. The stub of each process may get one for each
/// thread of the kernel that ever ran it, and the kernel has one for each process: under load 7 are
/// seen for each, in a fork bomb 25 and more.
pub(crate) fn host_pids(pids: u64) -> u64 {
    let stubs = pids.saturating_add(1).saturating_mul(pids.saturating_add(KERNEL_THREADS));
    stubs.saturating_add(OWN_PIDS).min(MAX_HOST_PIDS)
}

/// runsc, attached, in these cgroups. Its state lies in a directory of its own, so that the wipe can
/// take all of it.
pub(crate) fn command(plan: &Plan, groups: &[PathBuf]) -> Command {
    let mut command = runsc(plan, groups);
    command.args(["run", "--bundle"]).arg(&plan.traces.dir).arg(plan.traces.id.as_str());
    command
}

/// The same with a kernel that was stored in this directory.
pub(crate) fn restore(plan: &Plan, groups: &[PathBuf], memory: &Path) -> Command {
    let mut command = runsc(plan, groups);
    command.args(["restore", "--bundle"]).arg(&plan.traces.dir);
    command.arg("--image-path").arg(memory).arg(plan.traces.id.as_str());
    command
}

/// runsc up to its subcommand.
fn runsc(plan: &Plan, groups: &[PathBuf]) -> Command {
    let Plan { traces, runtime, .. } = plan;
    let is_found = finds_groups(Path::new(GROUPS), traces);
    let cpus = plan.effective.limits.cpu.and_then(processors::list);
    // It counts those of its group. Elsewhere it counts those on which it may run.
    let is_confined = is_found && cpus.as_deref().is_some_and(|cpus| is_confined(traces, cpus));
    let asked = cpus.filter(|_| !is_confined);
    // Killed, it takes the kernel along, which would not always notice that its worker is gone.
    let mut command = starter::shell(ENTER);
    command
        .args(groups.iter().map(|group| cgroup::entrance(group)))
        .arg("--")
        .args(asked.as_deref().map(processors::starter).unwrap_or_default())
        .arg(&runtime.path)
        .arg("--root")
        .arg(&traces.runtime_state)
        // What is written is on the host at once: newer versions keep it in a file of their own, which ends with them.
        .args(["--network=none", "--oci-seccomp", "--overlay2=none"])
        .args((!is_found).then_some("--ignore-cgroups"))
        .arg("--pod-init-config")
        .arg(connects::config(traces));
    command
}

/// Confines a kernel that is to come to these processors, and says whether that could be.
fn is_confined(traces: &Traces, cpus: &str) -> bool {
    let confined = limit::confine(Path::new(GROUPS), traces, cpus);
    if let Err((path, error)) = &confined {
        tracing::debug!(?path, %error, "gVisor shows all processors of this host");
    }
    confined.is_ok()
}

/// Whether runsc finds the groups that were made for it. It joins such groups and leaves them as they are, and its kernel shows their
/// limit of memory as all that there is; without them it shows the host's.
fn finds_groups(at: &Path, traces: &Traces) -> bool {
    if at.join("cgroup.controllers").exists() {
        return at.join(&traces.cgroup).is_dir();
    }
    LIMITING.iter().all(|name| at.join(name).join(&traces.cgroup).is_dir())
}

/// The task's kernel among the members of a cgroup. Its stubs are copies of it under the same name,
/// so it is the eldest.
pub(crate) fn kernel(members: &[u32]) -> Option<u32> {
    let is_kernel = |pid: &u32| {
        let argv = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        argv.split(|byte| *byte == 0).next() == Some(b"runsc-sandbox")
    };
    let found = members.iter().copied().filter(is_kernel).filter_map(Process::of);
    found.min_by_key(|process| (process.started, process.pid)).map(|process| process.pid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_version_is_said_to_stop_now_and_then() {
        for old in ["runsc version 0.0~20221219.0", "runsc version release-20230417.0"] {
            assert!(unsteady(old).unwrap().starts_with(old));
        }
        for other in ["runsc version 0.0~20240729.0", "runsc version release-20230501.0", "runsc"] {
            assert_eq!(unsteady(other), None);
        }
    }

    #[test]
    fn groups_are_found_where_all_that_limit_are_and_a_runtime_makes_the_others() {
        let at = tempfile::tempdir().unwrap();
        let id = cofferdam_contracts::id::SandboxId::parse("sb00000000000000000001").unwrap();
        let traces = Traces::of(at.path(), at.path(), &id);
        for name in ["memory", "cpu"] {
            fs::create_dir_all(at.path().join(name).join(&traces.cgroup)).unwrap();
        }
        assert!(!finds_groups(at.path(), &traces));
        fs::create_dir_all(at.path().join("pids").join(&traces.cgroup)).unwrap();
        assert!(finds_groups(at.path(), &traces));
        fs::write(at.path().join("cgroup.controllers"), "memory pids cpu").unwrap();
        assert!(!finds_groups(at.path(), &traces));
        fs::create_dir_all(at.path().join(&traces.cgroup)).unwrap();
        assert!(finds_groups(at.path(), &traces));
    }

    #[test]
    fn memory_is_kept_with_a_version_that_was_tried_or_where_the_operator_says_so() {
        let kept = |version: &str, asked| kept_memory(version, asked).is_kept;
        let (old, new) = ("runsc version 0.0~20221219.0", "runsc version 0.0~20240729.0");
        assert!(kept(new, None) && kept("runsc version release-20260101.0", None));
        assert!(!kept(old, None) && !kept("runsc", None));
        assert!(kept(old, Some("1")) && kept("runsc", Some("1")) && !kept(new, Some("0")));
        // No word of either kind decides nothing.
        assert!(kept(new, Some("")) && !kept(old, Some("yes")));
        assert_eq!(kept_memory(new, Some("0")).why, "COFFERDAM_GVISOR_MEMORY is set to 0");
        assert!(kept_memory(old, None).why.contains("COFFERDAM_GVISOR_MEMORY=1"));
    }

    #[test]
    fn a_task_of_one_process_leaves_room_for_its_kernel() {
        assert_eq!(host_pids(1), OWN_PIDS + 2 * 33);
        assert_eq!(host_pids(MAX_PIDS), MAX_HOST_PIDS);
        assert_eq!(host_pids(u64::MAX), MAX_HOST_PIDS);
    }
}
