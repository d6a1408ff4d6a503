//! What the kernel shows of itself and of the host in `/proc` and `/sys`.

use std::fs;
use std::path::{Path, PathBuf};

use super::answer::{NOTHING, failed, names, open_masked, open_read, open_write, read_any, said};
use super::entry::{Probe, probe};

/// Masked, absent, or refused: in no case a byte.
const EMPTY: &[&str] = &[NOTHING, "ENOENT", "EACCES", "EPERM"];
const CLOSED: &[&str] = &["EROFS", "ENOENT", "EACCES", "EPERM"];
/// Read-only, or a root's who is not the task's.
const UNWRITABLE: &[&str] = &["EROFS", "EACCES"];
const REFUSED: &[&str] = &["EACCES", "EPERM"];
/// The agent, what it started and this: more are somebody else's.
const MAX_PROCESSES: usize = 4;

pub const PROC: &[Probe] = &[
    probe("proc.kcore", "read the kernel's memory", EMPTY, |_| read_any("/proc/kcore")),
    probe("proc.kmsg", "read the kernel's log", EMPTY, |_| open_masked("/proc/kmsg")),
    probe("proc.keys", "list the keys of the host", EMPTY, |_| read_any("/proc/keys")),
    probe("proc.timers", "list the timers of the host", EMPTY, |_| read_any("/proc/timer_list")),
    probe("proc.scsi", "list the disks of the host", EMPTY, |_| names("/proc/scsi")),
    probe("proc.sysrq", "press the magic key", CLOSED, |_| open_write("/proc/sysrq-trigger")),
    probe("proc.core-pattern", "choose the host's core dump program", UNWRITABLE, |_| {
        open_write("/proc/sys/kernel/core_pattern")
    }),
    probe("proc.modprobe", "choose the host's module loader", CLOSED, |_| {
        open_write("/proc/sys/kernel/modprobe")
    }),
    probe("proc.caches", "drop the host's caches", UNWRITABLE, |_| {
        open_write("/proc/sys/vm/drop_caches")
    }),
    probe("proc.forwarding", "turn on forwarding", UNWRITABLE, |_| {
        open_write("/proc/sys/net/ipv4/ip_forward")
    }),
    probe("proc.binfmt", "register a program format", CLOSED, |_| {
        open_write("/proc/sys/fs/binfmt_misc/register")
    }),
    probe("proc.agent-root", "enter the agent's root", REFUSED, |_| {
        said(fs::read_dir("/proc/1/root"))
    }),
    probe("proc.agent-memory", "read the agent's memory", REFUSED, |_| open_read("/proc/1/mem")),
    probe("proc.agent-environ", "read the agent's environment", REFUSED, |_| {
        open_read("/proc/1/environ")
    }),
    // The numbers can be listed; what they are, and the files, cannot be had.
    probe("proc.agent-files", "open the agent's stream", REFUSED, |_| {
        said(fs::read_link("/proc/1/fd/0"))
    }),
    probe("proc.processes", "see processes of others", &[NOTHING], |_| processes()),
];

pub const SYS: &[Probe] = &[
    probe("sys.write", "choose the host's device event program", CLOSED, |_| {
        open_write("/sys/kernel/uevent_helper")
    }),
    probe("sys.power", "put the host to sleep", CLOSED, |_| open_write("/sys/power/state")),
    probe("sys.uevent", "send a device event", CLOSED, |_| {
        open_write("/sys/devices/system/cpu/cpu0/uevent")
    }),
    probe("sys.make", "make a directory", CLOSED, |_| {
        let path = "/sys/fs/cgroup/.probe";
        let made = fs::create_dir(path);
        if made.is_ok() {
            // Only where the sandbox does not hold.
            let _ = fs::remove_dir(path);
        }
        said(made)
    }),
    probe("sys.cgroup", "find the groups of others, or the limits of the host", EMPTY, |_| {
        groups()
    }),
    probe("sys.release-agent", "choose a cgroup's release program", CLOSED, |_| {
        open_write("/sys/fs/cgroup/release_agent")
    }),
    probe("sys.debug", "look into the kernel's debug files", EMPTY, |_| names("/sys/kernel/debug")),
    probe("sys.tracing", "look into the kernel's traces", EMPTY, |_| names("/sys/kernel/tracing")),
    probe("sys.security", "look into the security module", EMPTY, |_| {
        names("/sys/kernel/security")
    }),
    probe("sys.bpf", "find pinned kernel programs", EMPTY, |_| names("/sys/fs/bpf")),
    probe("sys.firmware", "read the firmware's tables", EMPTY, |_| names("/sys/firmware")),
];

fn processes() -> String {
    let count = match fs::read_dir("/proc") {
        Ok(entries) => entries
            .flatten()
            .filter(|entry| entry.file_name().to_string_lossy().parse::<u32>().is_ok())
            .count(),
        Err(error) => return failed(&error),
    };
    if count <= MAX_PROCESSES { NOTHING.to_owned() } else { format!("{count} processes") }
}

/// More than any host has: what the group of all processes says of its memory.
const UNLIMITED: u64 = 1 << 50;

/// What is not the sandbox's own of the groups that it is shown: groups below them, and limits that are none.
fn groups() -> String {
    let top = Path::new("/sys/fs/cgroup");
    let dirs = |at: &Path| -> Vec<PathBuf> {
        let entries = fs::read_dir(at).into_iter().flatten().flatten();
        let dirs = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        dirs.map(|entry| entry.path()).collect()
    };
    let is_unified = top.join("cgroup.controllers").exists();
    let own = if is_unified { vec![top.to_owned()] } else { dirs(top) };
    let below = own.iter().flat_map(|at| dirs(at));
    let mut found: Vec<String> = below.map(|at| at.display().to_string()).collect();
    for file in ["memory.max", "memory/memory.limit_in_bytes"] {
        let Ok(limit) = fs::read_to_string(top.join(file)) else { continue };
        if limit.trim().parse::<u64>().map_or(true, |limit| limit >= UNLIMITED) {
            found.push(format!("{file} {}", limit.trim()));
        }
    }
    if found.is_empty() { NOTHING.to_owned() } else { found.join(" ") }
}
