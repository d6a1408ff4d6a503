//! The OCI configuration of a container-class sandbox.

pub(crate) mod calls;

use std::fs;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use cofferdam_contracts::sandbox::Limits;
use serde_json::{Value, json};

use crate::host::ceiling::Ceilings;
use crate::host::cgroup::OwnGroup;
use crate::host::guest::{AGENT_PATH, AGENT_PIDS};
use crate::host::idrange::{self, IdRange};
use crate::host::limit::{CPU_PERIOD_US, quota_us};
use crate::host::mounts::overlay_lowers;
use crate::host::runtime::Runtime;

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

/// Besides, where services have roots of their own.
const CHANGE_ROOT: &str = "CAP_SYS_CHROOT";

/// What tells of the host's kernel, its devices or its other processes. Absent ones are skipped. Where others are
/// mounted on the host (/sys/kernel/debug, tracing, security, /sys/fs/bpf, cgroup, pstore) a new sysfs has empty
/// directories, and a mask over each would be a mount for nothing.
const MASKED: [&str; 29] = [
    "/proc/acpi",
    "/proc/asound",
    "/proc/buddyinfo",
    "/proc/config.gz",
    "/proc/interrupts",
    "/proc/iomem",
    "/proc/ioports",
    "/proc/kallsyms",
    "/proc/kcore",
    "/proc/key-users",
    "/proc/keys",
    "/proc/kpagecgroup",
    "/proc/kpagecount",
    "/proc/kpageflags",
    "/proc/latency_stats",
    "/proc/lock_stat",
    "/proc/pagetypeinfo",
    "/proc/sched_debug",
    "/proc/scsi",
    "/proc/slabinfo",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/vmallocinfo",
    "/sys/devices/virtual/powercap",
    "/sys/firmware",
    "/sys/fs/ext4",
    "/sys/kernel/btf",
    "/sys/kernel/slab",
    "/sys/kernel/vmcoreinfo",
];
/// Not 0: where a program takes core dumps, the kernel starts it for a limit of 0 too, and for 1 it does not.
const CORE_BYTES: u64 = 1;
const READ_ONLY: [&str; 5] =
    ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

/// What the configuration depends on.
pub(crate) struct OciInput<'a> {
    pub root: &'a Path,
    /// What lies beside it for the runtime to bind.
    pub beside: &'a Path,
    pub cgroup: &'a Path,
    pub shown: HostDirs<'a>,
    pub limits: Limits,
    pub cpus: u32,
    pub ceilings: Ceilings,
    pub nofile: Nofile,
    /// Whether the runtime takes a filter that is compiled already.
    pub takes_program: bool,
    /// What its system call filter has to hold.
    pub needs: calls::Needs,
}

/// Directories of the host that the configuration shows read-only at their own place.
#[derive(Debug, Clone, Copy)]
pub(crate) enum HostDirs<'a> {
    /// None: they are in the root already.
    Not,
    Binds(&'a [PathBuf]),
    Apart {
        paths: &'a [PathBuf],
        empty: &'a Path,
    },
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

pub(crate) fn config(wanted: &OciInput<'_>) -> Value {
    let process = process(wanted);
    let (mounts, resources) = (mounts(wanted.shown), resources(wanted));
    let seccomp = calls::seccomp(wanted.needs, wanted.takes_program);
    let namespaces = ["pid", "network", "ipc", "uts", "mount"].map(|kind| json!({"type": kind}));
    json!({
        "ociVersion": "1.0.0",
        "annotations": seccomp.annotations,
        "process": process,
        "root": {"path": wanted.root, "readonly": false},
        "hostname": "cofferdam",
        "mounts": mounts,
        "linux": {
            "cgroupsPath": Path::new("/").join(wanted.cgroup),
            "namespaces": namespaces,
            "resources": resources,
            "maskedPaths": MASKED.as_slice(),
            "readonlyPaths": READ_ONLY,
            "seccomp": seccomp.list,
        },
    })
}

/// Where a runtime looks for the configuration of a bundle.
pub(crate) fn file_of(bundle: &Path) -> PathBuf {
    bundle.join("config.json")
}

/// Has a configuration of ours lead to another root and group.
pub(crate) fn place(config: &mut Value, root: &Path, cgroup: &Path) {
    let cgroup = Path::new("/").join(cgroup);
    for (at, path) in [(ROOT_AT, root), (CGROUP_AT, cgroup.as_path())] {
        if let Some(found) = config.pointer_mut(at) {
            *found = json!(path);
        }
    }
}

fn process(wanted: &OciInput<'_>) -> Value {
    let (nofile, ceilings) = (wanted.nofile, wanted.ceilings);
    let roots = wanted.needs.roots.then_some(CHANGE_ROOT);
    let capabilities: Vec<&str> = CAPABILITIES.into_iter().chain(roots).collect();
    let both = |name: &str, most: u64| json!({"type": name, "soft": most, "hard": most});
    json!({
        "terminal": false,
        "user": {"uid": 0, "gid": 0},
        "args": [AGENT_PATH],
        "env": [],
        "cwd": "/",
        "capabilities": {
            "bounding": capabilities,
            "effective": capabilities,
            "permitted": capabilities,
            "inheritable": [],
            "ambient": [],
        },
        "rlimits": [
            both("RLIMIT_CORE", CORE_BYTES),
            {"type": "RLIMIT_NOFILE", "soft": nofile.soft, "hard": nofile.hard},
            both("RLIMIT_SIGPENDING", ceilings.signals),
            both("RLIMIT_MSGQUEUE", ceilings.queue_bytes),
        ],
        "noNewPrivileges": true,
        "oomScoreAdj": 0,
    })
}

fn mounts(shown: HostDirs<'_>) -> Vec<Value> {
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
    match shown {
        HostDirs::Not => {}
        HostDirs::Binds(paths) => {
            mounts.extend(paths.iter().map(|path| bind(path, &path.to_string_lossy())));
        }
        HostDirs::Apart { paths, empty } => {
            mounts.extend(paths.iter().map(|path| apart(path, empty)));
        }
    }
    mounts
}

/// A directory of the host read-only, by an overlay: what is opened there is no inode of the host's, so a lock, a lease
/// or a watch on it concerns nobody else. An overlay without an upper layer has two lower ones.
fn apart(source: &Path, empty: &Path) -> Value {
    let lowers = overlay_lowers(&[source, empty]);
    let mut mount = overlay(&source.to_string_lossy(), &[lowers]);
    if let Some(Value::Array(options)) = mount.get_mut("options") {
        options.push("ro".into());
    }
    mount
}

/// A host path, read-only.
pub(crate) fn bind(source: &Path, target: &str) -> Value {
    json!({"destination": target, "type": "bind", "source": source,
           "options": ["bind", "ro", "nosuid", "nodev"]})
}

/// The same of what holds no programs.
fn bind_data(source: &Path, target: &Path) -> Value {
    json!({"destination": target, "type": "bind", "source": source,
           "options": ["bind", "ro", "nosuid", "nodev", "noexec"]})
}

/// A host path itself.
pub(crate) fn bind_writable(source: &Path, target: &str) -> Value {
    json!({"destination": target, "type": "bind", "source": source,
           "options": ["bind", "rw", "nosuid", "nodev"]})
}

/// A host directory, copy-on-write.
fn overlay(target: &str, options: &[String]) -> Value {
    let options: Vec<&str> =
        options.iter().map(String::as_str).chain(["nosuid", "nodev"]).collect();
    json!({"destination": target, "type": "overlay", "source": "overlay", "options": options})
}

fn resources(wanted: &OciInput<'_>) -> Value {
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

/// Where a configuration names the two places that are one sandbox's alone.
pub(crate) const ROOT_AT: &str = "/root/path";
pub(crate) const CGROUP_AT: &str = "/linux/cgroupsPath";

/// Makes the sandbox's root somebody of its own, in the namespace that is there. runc wants to be told its ids as well, and crun
/// wants not.
///
/// The path has a `.`: of one that begins with `/proc/PID` runc 1.1.15 compares the ids with those of that process, and not
/// with those of the namespace, and refuses.
pub(crate) fn own_users(config: &mut Value, runtime: &Runtime, taken: &IdRange) {
    let is_told = runtime.name != "crun";
    // It makes the namespace itself, for its file server.
    let makes_it = runtime.name == "runsc";
    if let Some(Value::Array(masked)) = config.pointer_mut("/linux/maskedPaths") {
        masked.retain(|path| !path.as_str().is_some_and(is_the_hosts_alone));
    }
    let handle = format!("/proc/./{}/fd/{}", std::process::id(), taken.space.as_raw_fd());
    let users = match makes_it {
        true => json!({"type": "user"}),
        false => json!({"type": "user", "path": handle}),
    };
    if let Some(Value::Array(namespaces)) = config.pointer_mut("/linux/namespaces") {
        namespaces.push(users);
    }
    if let (true, Some(Value::Object(linux))) = (is_told, config.get_mut("linux")) {
        let map = json!([{"containerID": 0, "hostID": taken.first, "size": idrange::COUNT}]);
        linux.insert("uidMappings".into(), map.clone());
        linux.insert("gidMappings".into(), map);
    }
}

/// Masks directories of sysfs with an empty one of ours, which never lies in the root: what is there is a tenant's. A runtime's own mask of a directory is a file system, and for each
/// of these the kernel keeps room in every memory cgroup of the host.
pub(crate) fn own_masks(config: &mut Value, nothing: &Path) {
    let mut binds = Vec::new();
    if let Some(Value::Array(masked)) = config.pointer_mut("/linux/maskedPaths") {
        masked.retain(|path| {
            let is_dir = |path: &&str| path.starts_with("/sys/") && Path::new(path).is_dir();
            let Some(path) = path.as_str().filter(is_dir) else { return true };
            binds.push(bind_data(nothing, Path::new(path)));
            false
        });
    }
    if let Some(Value::Array(mounts)) = config.get_mut("mounts") {
        mounts.extend(binds);
    }
}

/// Shows a sandbox its own cgroups read-only, in a namespace of theirs: what its programs may use is there to be read, and no name
/// of the host. `places` has a directory for each that has a name.
pub(crate) fn own_groups(config: &mut Value, groups: &[OwnGroup], places: &Path) {
    let at = Path::new("/sys/fs/cgroup");
    let mut binds = Vec::new();
    if groups.iter().any(|group| group.name.is_some()) {
        binds.push(bind_data(places, at));
    }
    binds.extend(groups.iter().map(|group| match group.name {
        Some(name) => bind_data(&group.dir, &at.join(name)),
        None => bind_data(&group.dir, at),
    }));
    if binds.is_empty() {
        return;
    }
    if let Some(Value::Array(namespaces)) = config.pointer_mut("/linux/namespaces") {
        namespaces.push(json!({"type": "cgroup"}));
    }
    if let Some(Value::Array(mounts)) = config.get_mut("mounts") {
        mounts.extend(binds);
    }
}

/// Has the runtime take a `/dev` of ours, which lies beside the root. A runtime that mounts one itself binds the host's nodes
/// where the sandbox's root may make none; told to bind a `/dev`, crun and runc put nothing in there.
pub(crate) fn own_devices(config: &mut Value, source: &Path, has_memory: bool) {
    let options = json!(["bind", "rw", "nosuid", "noexec"]);
    let bind = json!({"destination": "/dev", "type": "bind", "source": source, "options": options});
    let Some(Value::Array(mounts)) = config.get_mut("mounts") else { return };
    if let Some(dev) = mounts.iter_mut().find(|mount| mount["destination"] == "/dev") {
        *dev = bind;
    }
    if has_memory {
        mounts.retain(|mount| mount["destination"] != "/dev/shm");
    }
}

/// Whether only the host's root may read it, which nobody with ids of a sandbox's own is: a mask would add nothing. Such a
/// mode is the kernel's, for every procfs of the host.
fn is_the_hosts_alone(path: &str) -> bool {
    let others = 0o007;
    fs::symlink_metadata(path).is_ok_and(|meta| {
        meta.is_file() && meta.uid() == 0 && meta.gid() == 0 && meta.mode() & others == 0
    })
}
