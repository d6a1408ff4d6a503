//! The OCI configuration of a container-class sandbox.

use std::path::{Path, PathBuf};

use cofferdam_contracts::sandbox::Limits;
use serde_json::{Value, json};

use crate::base::AGENT_PATH;

/// Enough for package managers and servers that drop to another user; nothing that reaches a device,
/// the network's configuration, another process's memory or the kernel's. `KILL` lets the agent end
/// processes of other users.
const CAPABILITIES: [&str; 8] = [
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_FOWNER",
    "CAP_FSETID",
    "CAP_KILL",
    "CAP_NET_BIND_SERVICE",
    "CAP_SETGID",
    "CAP_SETUID",
];

/// System calls that no task needs and that kernel exploits begin with. They fail with EPERM.
const DENIED: [&str; 53] = [
    "acct",
    "add_key",
    "bpf",
    "delete_module",
    "fanotify_init",
    "finit_module",
    "fsconfig",
    "fsmount",
    "fsopen",
    "fspick",
    "init_module",
    "io_uring_enter",
    "io_uring_register",
    "io_uring_setup",
    "ioperm",
    "iopl",
    "kcmp",
    "kexec_file_load",
    "kexec_load",
    "keyctl",
    "lookup_dcookie",
    "mbind",
    "migrate_pages",
    "mount",
    "mount_setattr",
    "move_mount",
    "move_pages",
    "name_to_handle_at",
    "nfsservctl",
    "open_by_handle_at",
    "open_tree",
    "perf_event_open",
    "pidfd_getfd",
    "pivot_root",
    "process_madvise",
    "process_vm_readv",
    "process_vm_writev",
    "ptrace",
    "quotactl",
    "quotactl_fd",
    "reboot",
    "request_key",
    "set_mempolicy",
    "setns",
    "swapoff",
    "swapon",
    "sysfs",
    "syslog",
    "umount2",
    "unshare",
    "userfaultfd",
    "vhangup",
    "vmsplice",
];
pub(crate) const EPERM: u32 = 1;
const ENOSYS: u32 = 38;
const EAFNOSUPPORT: u32 = 97;

/// `AF_NETLINK`, the highest family that a task may use; `AF_UNIX`, `AF_INET` and `AF_INET6` are the
/// others. Above all `AF_VSOCK` must not be there: it reaches the hypervisor of a virtual host
/// whatever the network namespace, and `AF_ALG` and most others are only there to be exploited.
const HIGHEST_FAMILY: u64 = 16;
/// Those below it that are not allowed.
const OLD_FAMILIES: [u64; 12] = [3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 14, 15];
const CLONE_NEWUSER: u64 = 0x1000_0000;

const MASKED: [&str; 10] = [
    "/proc/acpi",
    "/proc/asound",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/sys/firmware",
];
const READ_ONLY: [&str; 5] =
    ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

/// The agent is one process more than the task asked for.
pub(crate) const AGENT_PIDS: u64 = 1;
/// The scheduler's default period: long enough that a small quota is not all overhead.
pub(crate) const CPU_PERIOD_US: u32 = 100_000;

/// What the configuration depends on.
pub(crate) struct Wanted<'a> {
    pub root: &'a Path,
    pub cgroup: &'a Path,
    pub binds: &'a [PathBuf],
    pub limits: Limits,
    pub cpus: u32,
    pub nofile: Nofile,
}

/// Open files of each process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Nofile {
    pub soft: u64,
    pub hard: u64,
}

/// What programs are used to: some walk all descriptors up to their limit before they start another.
const USUAL_NOFILE: u64 = 1_024;

impl Nofile {
    /// What was asked for, from the start.
    pub(crate) fn exact(asked: u64) -> Self {
        Self { soft: asked, hard: asked }
    }

    /// Nobody asked: the usual number, which a program may raise for itself up to this one.
    pub(crate) fn roomy(most: u64) -> Self {
        Self { soft: most.min(USUAL_NOFILE), hard: most }
    }
}

pub(crate) fn config(wanted: &Wanted<'_>) -> Value {
    let namespaces = ["pid", "network", "ipc", "uts", "mount"].map(|kind| json!({"type": kind}));
    json!({
        "ociVersion": "1.0.0",
        "process": process(wanted.nofile),
        "root": {"path": wanted.root, "readonly": false},
        "hostname": "cofferdam",
        "mounts": mounts(wanted.binds),
        "linux": {
            "cgroupsPath": Path::new("/").join(wanted.cgroup),
            "namespaces": namespaces,
            "resources": resources(wanted),
            "maskedPaths": MASKED,
            "readonlyPaths": READ_ONLY,
            "seccomp": seccomp(),
        },
    })
}

fn process(nofile: Nofile) -> Value {
    json!({
        "terminal": false,
        "user": {"uid": 0, "gid": 0},
        "args": [AGENT_PATH],
        "env": [],
        "cwd": "/",
        "capabilities": {
            "bounding": CAPABILITIES,
            "effective": CAPABILITIES,
            "permitted": CAPABILITIES,
            "inheritable": [],
            "ambient": [],
        },
        "rlimits": [
            {"type": "RLIMIT_CORE", "soft": 0, "hard": 0},
            {"type": "RLIMIT_NOFILE", "soft": nofile.soft, "hard": nofile.hard},
        ],
        "noNewPrivileges": true,
        "oomScoreAdj": 0,
    })
}

fn mounts(binds: &[PathBuf]) -> Vec<Value> {
    let mut mounts = vec![
        json!({"destination": "/proc", "type": "proc", "source": "proc",
               "options": ["nosuid", "noexec", "nodev"]}),
        json!({"destination": "/dev", "type": "tmpfs", "source": "tmpfs",
               "options": ["nosuid", "noexec", "strictatime", "mode=755", "size=64k"]}),
        json!({"destination": "/dev/pts", "type": "devpts", "source": "devpts",
               "options": ["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"]}),
        json!({"destination": "/dev/shm", "type": "tmpfs", "source": "shm",
               "options": ["nosuid", "noexec", "nodev", "mode=1777", "size=64m"]}),
        json!({"destination": "/sys", "type": "sysfs", "source": "sysfs",
               "options": ["nosuid", "noexec", "nodev", "ro"]}),
    ];
    mounts.extend(binds.iter().map(|path| bind(path, &path.to_string_lossy())));
    mounts
}

/// A host path, read-only.
pub(crate) fn bind(source: &Path, target: &str) -> Value {
    json!({"destination": target, "type": "bind", "source": source,
           "options": ["bind", "ro", "nosuid", "nodev"]})
}

/// A host path itself.
pub(crate) fn bind_writable(source: &Path, target: &str) -> Value {
    json!({"destination": target, "type": "bind", "source": source,
           "options": ["bind", "rw", "nosuid", "nodev"]})
}

/// A host directory, copy-on-write.
pub(crate) fn overlay(target: &str, options: &[String]) -> Value {
    let options: Vec<&str> =
        options.iter().map(String::as_str).chain(["nosuid", "nodev"]).collect();
    json!({"destination": target, "type": "overlay", "source": "overlay", "options": options})
}

fn resources(wanted: &Wanted<'_>) -> Value {
    let bytes = wanted.limits.mem_mb.unwrap_or(0).saturating_mul(1024 * 1024);
    let mut resources = json!({
        "devices": [{"allow": false, "access": "rwm"}],
        "memory": {"limit": bytes, "swap": bytes},
        "pids": {"limit": wanted.limits.pids.unwrap_or(0) + AGENT_PIDS},
    });
    let cpu = wanted.limits.cpu.unwrap_or(0.0);
    if let (true, Value::Object(fields)) = (cpu < f64::from(wanted.cpus), &mut resources) {
        fields.insert("cpu".into(), json!({"quota": quota_us(cpu), "period": CPU_PERIOD_US}));
    }
    resources
}

/// Microseconds of CPU time in a period: whole ones, so that the configuration is exact.
pub(crate) fn quota_us(cpu: f64) -> u64 {
    // The plan allows 0.01 to the host's CPUs, so the quota has at most nine digits.
    format!("{:.0}", cpu * f64::from(CPU_PERIOD_US)).parse().unwrap_or(0)
}

fn seccomp() -> Value {
    let mut rules = vec![
        json!({"names": DENIED.as_slice(), "action": "SCMP_ACT_ERRNO", "errnoRet": EPERM}),
        // A user namespace would give back every capability; other namespaces need one that the
        // task does not have.
        json!({"names": ["clone"], "action": "SCMP_ACT_ERRNO", "errnoRet": EPERM,
               "args": [{"index": 0, "value": CLONE_NEWUSER, "valueTwo": CLONE_NEWUSER,
                         "op": "SCMP_CMP_MASKED_EQ"}]}),
        // Its flags lie in memory where a filter cannot look; libraries fall back to clone.
        json!({"names": ["clone3"], "action": "SCMP_ACT_ERRNO", "errnoRet": ENOSYS}),
        family("SCMP_CMP_GT", HIGHEST_FAMILY),
    ];
    rules.extend(OLD_FAMILIES.map(|old| family("SCMP_CMP_EQ", old)));
    json!({"defaultAction": "SCMP_ACT_ALLOW", "syscalls": rules})
}

fn family(op: &str, value: u64) -> Value {
    json!({"names": ["socket", "socketpair"], "action": "SCMP_ACT_ERRNO",
           "errnoRet": EAFNOSUPPORT, "args": [{"index": 0, "value": value, "op": op}]})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fraction_of_a_cpu_is_a_whole_number_of_microseconds() {
        assert_eq!(quota_us(0.01), 1_000);
        assert_eq!(quota_us(1.5), 150_000);
    }
}
