//! What `doctor` looks at beyond the facts that a plan needs: the kernel's features, the room, and
//! what is weak. Each is tried where trying is harmless, because a file's presence proves little.

use std::fs::{self, OpenOptions};
use std::io;
use std::path::Path;
use std::process::{Command, Stdio};

use cofferdam_ambient::random;
use cofferdam_contracts::sandbox::DEFAULT_PIDS;
use rustix::fs::statfs;

use super::finding::{Finding, Grade};
use crate::class::weak::{NO_USER_NAMESPACE, NOT_OWNED};
use crate::doctor::vulnerabilities;
use crate::host::ceiling::Tcp;
use crate::host::crypt::{self, LargeLayers};
use crate::host::idrange::IdRanges;
use crate::host::{dynmods, live, mounts};
use crate::life::is_on;
use crate::machine::monitor::{self, Kind};
use crate::plan::limits;
use crate::spec::class::Offer;
use crate::spec::facts::HostFacts;
use crate::spec::machine::Accel;

/// Less room than this on the state directory's file system is weak: the private database and the
/// artifacts lie there.
const MIN_DISK_MB: u64 = 1_024;
/// One sandbox with the default limits.
const MIN_MEM_MB: u64 = 512;
const MIB: u64 = 1024 * 1024;

fn finding(id: &'static str, good: bool, found: impl Into<String>, mend: &'static str) -> Finding {
    let grade = if good { Grade::Good } else { Grade::Weak };
    Finding { id, grade, found: found.into(), mend: (!good).then_some(mend) }
}

fn fact(id: &'static str, found: impl Into<String>) -> Finding {
    Finding { id, grade: Grade::Fact, found: found.into(), mend: None }
}

/// Whose device nodes a container's are.
fn devices(facts: &HostFacts) -> Finding {
    let foreign = facts.ids.as_ref().ok().and_then(IdRanges::foreign_nodes);
    let found = foreign.map_or("each container's own".to_owned(), |why| {
        format!("the host's ({why}): a task observes what others open, and locks are shared")
    });
    finding(
        "container.devices",
        foreign.is_none(),
        found,
        "let the worker make device nodes: CAP_MKNOD, and device rules that allow `c *:* m`",
    )
}

/// Looks at everything. Blocking, a few milliseconds; mounts and unmounts an overlay of its own.
#[must_use]
pub fn survey(facts: &HostFacts) -> Vec<Finding> {
    let controllers = controllers(facts);
    let missing: Vec<&str> =
        ["cpu", "memory", "pids"].into_iter().filter(|name| !facts.cgroups.has(name)).collect();
    let actions = line("/proc/sys/kernel/seccomp/actions_avail");
    let mut all = vec![
        fact("kernel", &facts.kernel),
        user_namespaces(),
        finding(
            "user-namespace.in-use",
            facts.ids.as_ref().is_ok_and(IdRanges::is_owned),
            match &facts.ids {
                Ok(ids) if ids.is_owned() => format!("yes: ranges of 65536 ids, {}", ids.said()),
                Ok(ids) => format!("yes: ranges of 65536 ids, {}; {NOT_OWNED}", ids.said()),
                Err(why) => format!("no ({why}): {NO_USER_NAMESPACE}"),
            },
            "Linux 5.19 with user namespaces, unused ids (COFFERDAM_ID_RANGE=FIRST:COUNT) and a tmpfs at /run; \
             for hostile code use a stronger class (gvisor, microvm)",
        ),
        devices(facts),
        overlay(&facts.live_dir),
        fact("cgroup.mode", format!("{:?}", facts.cgroups.mode)),
        finding(
            "cgroup.controllers",
            missing.is_empty(),
            controllers,
            "limits that name a missing controller are refused: mount cpu, memory and pids",
        ),
        tcp(facts),
        sockets(facts),
        favordynmods(),
        finding(
            "seccomp",
            actions.split(' ').any(|action| action == "errno"),
            if actions.is_empty() { "none".to_owned() } else { actions },
            "run a kernel with CONFIG_SECCOMP_FILTER",
        ),
        security_modules(),
        fact(
            "container.waiting",
            match is_on() {
                true => {
                    "one waits where two sandboxes in a row had its shape and five minutes have not passed \
                         (COFFERDAM_NO_WAITING_CONTAINER=1: none)"
                }
                false => "none: COFFERDAM_NO_WAITING_CONTAINER is 1",
            },
        ),
        finding(
            "swap",
            !facts.swap,
            if facts.swap { "on: a layer may reach the swap device unencrypted" } else { "off" },
            "swapoff -a, or encrypt the swap device",
        ),
        finding(
            "private-mounts",
            facts.private_mounts,
            if facts.private_mounts { "yes" } else { "no: a killed worker's mounts stay" },
            "start as root, or with PrivateMounts=yes of systemd",
        ),
        live_dir(&facts.live_dir),
        large_layers(facts),
        kvm(facts),
        open_files(facts),
        fact("cpus", facts.cpus.to_string()),
        memory(facts),
        disk(&facts.state_dir),
    ];
    all.extend(facts.classes.iter().filter_map(|fact| match &fact.offer {
        Offer::Present(runtime) => vulnerabilities::look(runtime),
        Offer::Absent { .. } => None,
    }));
    all
}

fn controllers(facts: &HostFacts) -> String {
    let mut names: Vec<&str> = facts
        .cgroups
        .hierarchies
        .iter()
        .flat_map(|tree| tree.controllers.iter().map(String::as_str))
        .collect();
    names.sort_unstable();
    names.dedup();
    names.join(" ")
}

fn tcp(facts: &HostFacts) -> Finding {
    let found = match facts.ceilings.tcp {
        Tcp::Counted => "counted with the sandbox's memory",
        Tcp::Limited => "limited like the sandbox's memory (version 1)",
        Tcp::Uncounted => "outside every limit: a sandbox can take all that the host has for TCP",
    };
    finding(
        "cgroup.tcp-memory",
        facts.ceilings.tcp != Tcp::Uncounted,
        found,
        "use cgroups of version 2 (systemd.unified_cgroup_hierarchy=1), or a kernel with CONFIG_MEMCG_V1",
    )
}

/// What a socket queues unread counts for no cgroup; only its size and the number of sockets bound it.
fn sockets(facts: &HostFacts) -> Finding {
    let each = facts.ceilings.socket_bytes / 1024;
    finding(
        "net.socket-queues",
        !facts.ceilings.has_large_sockets(),
        format!(
            "a socket queues at most {each} KiB that no cgroup counts; their number is limited"
        ),
        "set net.core.rmem_default to the kernel's own 212992",
    )
}

/// By making one: sysctls, security modules and outer sandboxes may all forbid it.
fn user_namespaces() -> Finding {
    let tried = Command::new("unshare")
        .args(["--user", "true"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    match tried {
        Ok(status) if status.success() => fact("user-namespace.kernel", "can be made (tried)"),
        Ok(_) => fact("user-namespace.kernel", "cannot be made (tried)"),
        Err(_) => fact("user-namespace.kernel", "not tried: unshare(1) is not installed"),
    }
}

/// What a task has that says nothing of processes and files, and what it may have with fewer processes.
fn open_files(facts: &HostFacts) -> Finding {
    let usual = facts.nofile.min(facts.ceilings.nofile(DEFAULT_PIDS));
    finding(
        "open-files",
        usual >= 4_096,
        format!(
            "{usual} for each of {DEFAULT_PIDS} processes (together half of fs.file-max), up to {} with fewer processes",
            facts.nofile
        ),
        "raise the hard limit (LimitNOFILE= of systemd, ulimit -Hn) and fs.file-max",
    )
}

fn overlay(live: &Path) -> Finding {
    let mend = "load the module (modprobe overlay), or run where overlays may be mounted";
    match try_overlay(live) {
        Ok(()) => finding("overlay", true, "a layer was mounted, written and unmounted", mend),
        Err(error) => finding("overlay", false, format!("a layer failed: {error}"), mend),
    }
}

fn try_overlay(live: &Path) -> io::Result<()> {
    let dir = live.join(format!(".survey-{}", random::secret_hex(8)));
    let [layer, root, lower] = ["layer", "root", "lower"].map(|name| dir.join(name));
    let (upper, work) = (layer.join("upper"), layer.join("work"));
    let made = (|| {
        for path in [&layer, &root, &lower] {
            fs::create_dir_all(path)?;
        }
        mounts::mount_tmpfs(&layer, 1)?;
        for path in [&upper, &work] {
            fs::create_dir(path)?;
        }
        mounts::mount_overlay(&root, &[lower], &upper, &work)?;
        fs::write(root.join("written"), "x")?;
        fs::read(upper.join("written")).map(|_| ())
    })();
    // Whatever was made goes, in the opposite order; what was not is no error.
    let _ = mounts::unmount(&root);
    let _ = mounts::unmount(&layer);
    fs::remove_dir_all(&dir)?;
    made
}

fn favordynmods() -> Finding {
    let on = match dynmods::is_mounted(&mounts::mounted().unwrap_or_default()) {
        true => Ok("on"),
        false => dynmods::favor()
            .map(|_| "on while a worker runs (tried; COFFERDAM_LEAVE_DYNMODS=1 leaves it)"),
    };
    finding(
        "cgroup.favordynmods",
        on.is_ok(),
        on.map_or_else(
            |why| format!("off: the first move into a group can cost 20 ms ({why})"),
            str::to_owned,
        ),
        "Linux 6.0 or newer, outside of a cgroup namespace; or mount -o remount,favordynmods the cgroup tree",
    )
}

fn security_modules() -> Finding {
    let listed = line("/sys/kernel/security/lsm");
    let apparmor = line("/sys/module/apparmor/parameters/enabled");
    let selinux = Path::new("/sys/fs/selinux/enforce").exists();
    let found = match (listed.is_empty(), apparmor.as_str(), selinux) {
        (false, ..) => listed,
        (true, "Y", _) => "apparmor".to_owned(),
        (true, _, true) => "selinux".to_owned(),
        (true, ..) => "none to be seen".to_owned(),
    };
    let good = ["apparmor", "selinux"].iter().any(|name| found.contains(name));
    finding("security-module", good, found, "a kernel with AppArmor or SELinux is one wall more")
}

fn live_dir(dir: &Path) -> Finding {
    let is_memory = live::is_memory(dir);
    let found = dir.display();
    let found = if is_memory { format!("tmpfs ({found})") } else { format!("disk ({found})") };
    finding(
        "live-directory",
        is_memory,
        found,
        "mount a tmpfs at /run: a start is then a third faster and touches no disk",
    )
}

/// By making a small one and destroying its key.
fn large_layers(facts: &HostFacts) -> Finding {
    let most = limits::memory_most_mb(facts);
    let mend = "a larger limits.diskMB is refused: it needs ext4 with fscrypt, loop devices, mkfs.ext4 \
                (apt-get install e2fsprogs) and a state directory on a disk";
    match &facts.large {
        LargeLayers::Absent { why, .. } => {
            finding("large-layers", false, format!("none beyond {most} MiB: {why}"), mend)
        }
        large => match crypt::try_one(&facts.state_dir, &facts.live_dir, large) {
            Ok(()) => fact("large-layers", format!("encrypted on disk beyond {most} MiB (tried)")),
            Err(why) => {
                finding("large-layers", false, format!("none beyond {most} MiB: {why}"), mend)
            }
        },
    }
}

/// Opened, and not trusted: that a virtual machine boots is shown only by booting one.
fn kvm(facts: &HostFacts) -> Finding {
    if let Some(machine) = &facts.machine {
        return match &machine.accel {
            Accel::Kvm => fact("kvm", "a machine was booted with it"),
            Accel::Software { why } => fact("kvm", format!("not used: {why}")),
        };
    }
    let opened = OpenOptions::new().read(true).write(true).open("/dev/kvm");
    fact(
        "kvm",
        match opened {
            Ok(_) => "opens; whether it boots a guest is not shown by that".to_owned(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => "absent".to_owned(),
            Err(error) => format!("does not open: {error}"),
        },
    )
}

/// The monitors of machines that are here besides QEMU: where there is KVM, each is told to start a machine
/// that is nobody's, once after the host's start.
pub async fn monitors(facts: &HostFacts) -> Vec<Finding> {
    let mut found = Vec::new();
    for kind in Kind::ALL {
        if let Some(said) = monitor::look(kind, facts).await {
            found.push(fact(kind.finding(), said));
        }
    }
    found
}

fn memory(facts: &HostFacts) -> Finding {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let free = text
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))
        .and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok())
        .unwrap_or(0)
        / 1024;
    finding(
        "memory",
        free >= MIN_MEM_MB,
        format!("{free} of {} MiB available", facts.mem_mb),
        "a sandbox takes up to 512 MiB unless its limits say less",
    )
}

fn disk(state: &Path) -> Finding {
    let free = statfs(state).map_or(0, |found| {
        let block = u64::try_from(found.f_bsize).unwrap_or(0);
        found.f_bavail.saturating_mul(block) / MIB
    });
    finding(
        "disk",
        free >= MIN_DISK_MB,
        format!("{free} MiB free at {}", state.display()),
        "the private database and the artifacts need room: free 1 GiB",
    )
}

fn line(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}
