//! The first process of the task's namespaces: takes the machine for a sandbox, puts its root
//! together, gives up what no task needs, and becomes the agent.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use cofferdam_guest::devices::{LINKS, NODES};
use cofferdam_guest::setup::{GREETING, PORT, READY, Setup};
use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};
use rustix::mount::{MountFlags, mount_bind, mount_move, mount_remount};
use rustix::process::{Resource, Rlimit, chdir, chroot, setrlimit};
use rustix::stdio::dup2_stdin;
use rustix::system::sethostname;
use rustix::thread::{
    CapabilitySet, CapabilitySets, remove_capability_from_bounding_set, set_capabilities,
};

use super::fault::{Fault, at, make, write};
use super::stream::Stream;
use super::{clock, disk, file_server, fill, limit, random, restore, vsock, warmup};
use crate::agent::sleep_blocking_ms;

const PORTS: &str = "/sys/class/virtio-ports";
/// Two seconds, of the sixty that a machine has to boot.
const PORT_TRIES: u32 = 200;
const PORT_EVERY_MS: u64 = 10;
/// What a task may do, as in a container.
const KEPT: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID)
    .union(CapabilitySet::KILL)
    .union(CapabilitySet::NET_BIND_SERVICE)
    .union(CapabilitySet::SETGID)
    .union(CapabilitySet::SETUID);
/// What the machine's kernel does for nobody, whatever finds a way to ask; and memory is promised as on a
/// large host, so that what goes beyond the limit meets the limit, and not a refusal that nobody counts.
const KERNEL: [(&str, &str); 7] = [
    ("/proc/sys/vm/overcommit_memory", "1"),
    ("/proc/sys/user/max_user_namespaces", "0"),
    ("/proc/sys/kernel/unprivileged_bpf_disabled", "1"),
    ("/proc/sys/kernel/kexec_load_disabled", "1"),
    ("/proc/sys/kernel/dmesg_restrict", "1"),
    ("/proc/sys/kernel/kptr_restrict", "2"),
    ("/proc/sys/kernel/modules_disabled", "1"),
];
const RANDOM_ADDRESSES: &str = "/proc/sys/kernel/randomize_va_space";
/// Shown empty, as in a container.
const MASKED: [&str; 4] = ["/proc/kcore", "/proc/keys", "/proc/timer_list", "/proc/latency_stats"];
const READ_ONLY: [&str; 5] =
    ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

/// Waits for a sandbox and makes the machine its own; the agent's stream is standard input then.
pub fn run() -> io::Result<()> {
    // The init's line, until the port takes its place.
    let line = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let port = open_port().map_err(io::Error::other)?;
    restore::show(&line, &port)?;
    file_server::file_server_line(line);
    prepare().map_err(io::Error::other)?;
    let mut port = Stream::new(port)?.connected()?;
    loop {
        port.say(GREETING)?;
        let setup = hear(&mut port)?;
        if !setup.is_rehearsal {
            return settle(port, &setup);
        }
        if let Err(fault) = warmup::wait_gone(&setup) {
            return Err(tell(&mut port, fault));
        }
    }
}

/// Hears what to be, and becomes it.
pub(super) fn follow(port: File) -> io::Result<()> {
    let mut port = Stream::new(port)?;
    let setup = hear(&mut port)?;
    settle(port, &setup)
}

fn settle(mut port: Stream, setup: &Setup) -> io::Result<()> {
    arrange(setup, &mut port).map_err(|fault| tell(&mut port, fault))?;
    port.say(READY)?;
    Ok(dup2_stdin(&port)?)
}

/// The host's word on what failed; it is lost with the host.
fn tell(port: &mut Stream, fault: Fault) -> io::Error {
    let _ = port.say(&format!("{fault}\n"));
    io::Error::other(fault)
}

/// What is the same for every sandbox, and so is done before there is one: a stored machine has it behind
/// it.
fn prepare() -> Result<(), Fault> {
    sethostname(b"cofferdam").map_err(at("the host's name"))?;
    for (path, value) in KERNEL {
        write(path, value)?;
    }
    // Bound by its driver, which is loaded already: nothing is loaded from here on. The kernel reads the
    // table of partitions, which every machine's disk has alike, and nothing behind it.
    disk::bind()?;
    limit::enter()
}

/// The port, or the socket of a machine that has none. The driver learns a port's name a little after it has the port, and a
/// busy host lets that last: a machine without either so far looks again.
fn open_port() -> Result<File, Fault> {
    let mut tries = 0;
    loop {
        if let Some(device) = port() {
            let opened = OpenOptions::new().read(true).write(true).open(device);
            return opened.map_err(at("the port"));
        }
        match vsock::open() {
            Err(_) if tries < PORT_TRIES => tries += 1,
            done => return done,
        }
        sleep_blocking_ms(PORT_EVERY_MS);
    }
}

/// The device of our port, once it has its name.
fn port() -> Option<PathBuf> {
    // Without the driver of ports there is no such directory.
    let entries = fs::read_dir(PORTS).into_iter().flatten();
    let is_ours = |path: &PathBuf| {
        fs::read_to_string(path.join("name")).is_ok_and(|name| name.trim() == PORT)
    };
    let found = entries.flatten().map(|entry| entry.path()).find(is_ours)?;
    Some(Path::new("/dev").join(found.file_name()?))
}

fn hear(port: &mut Stream) -> io::Result<Setup> {
    Ok(serde_json::from_slice(&port.hear()?)?)
}

fn arrange(setup: &Setup, port: &mut Stream) -> Result<(), Fault> {
    // Off until now where a processor is emulated: what is rehearsed must lie where it will lie.
    write(RANDOM_ADDRESSES, "2")?;
    random::reseed(setup.seed).map_err(at("randomness"))?;
    clock::set(port).map_err(at("the clock"))?;
    limit::set(setup)?;
    disk::lay(setup)?;
    if setup.is_filled {
        fill::fill(port)?;
    }
    disk::assemble(setup)?;
    change_root()?;
    disk::show(&setup.trees)?;
    if let Some((target, second)) = &setup.again {
        disk::again(Path::new(target), Path::new(second))?;
    }
    restore()?;
    surround()?;
    for (resource, soft, hard) in
        [(Resource::Core, 0, 0), (Resource::Nofile, setup.nofile_soft, setup.nofile)]
    {
        let limit = Rlimit { current: Some(soft), maximum: Some(hard) };
        setrlimit(resource, limit).map_err(at("a resource limit"))?;
    }
    give_up()
}

/// The initial root has nothing below it, so it is covered rather than exchanged.
fn change_root() -> Result<(), Fault> {
    chdir(disk::ROOT).map_err(at(disk::ROOT))?;
    mount_move(".", "/").map_err(at("the new root"))?;
    chroot(".").map_err(at("the new root"))?;
    chdir("/").map_err(at("the new root"))
}

/// Makes the directories that every sandbox has again, where the files that it begins with have none or something else there.
/// Nothing of them runs yet, and the root is the machine's alone.
fn restore() -> Result<(), Fault> {
    for (name, mode) in [("/dev", 0o755), ("/proc", 0o755), ("/sys", 0o755), ("/tmp", 0o1777)] {
        let path = Path::new(name);
        if path.is_dir() {
            continue;
        }
        disk::dirs(path).map_err(at(name))?;
        let mode = <fs::Permissions as std::os::unix::fs::PermissionsExt>::from_mode(mode);
        fs::set_permissions(path, mode).map_err(at(name))?;
    }
    Ok(())
}

/// The kernel's file systems, as an OCI runtime mounts them.
fn surround() -> Result<(), Fault> {
    let hard = MountFlags::NOSUID | MountFlags::NOEXEC | MountFlags::NODEV;
    make("proc", Path::new("/proc"), hard, None)?;
    make("sysfs", Path::new("/sys"), hard | MountFlags::RDONLY, None)?;
    let dev = MountFlags::NOSUID | MountFlags::NOEXEC;
    make("tmpfs", Path::new("/dev"), dev, Some("mode=755,size=64k"))?;
    for (name, major, minor) in NODES {
        let path = Path::new("/dev").join(name);
        let mode = Mode::from_bits_truncate(0o666);
        let device = makedev(major, minor);
        mknodat(CWD, &path, FileType::CharacterDevice, mode, device).map_err(at(name))?;
        let open = <fs::Permissions as std::os::unix::fs::PermissionsExt>::from_mode(0o666);
        fs::set_permissions(&path, open).map_err(at(name))?;
    }
    for (to, name) in LINKS {
        symlink(to, Path::new("/dev").join(name)).map_err(at(name))?;
    }
    for name in ["pts", "shm"] {
        fs::create_dir(Path::new("/dev").join(name)).map_err(at(name))?;
    }
    let pts = "newinstance,ptmxmode=0666,mode=0620,gid=5";
    make("devpts", Path::new("/dev/pts"), dev, Some(pts))?;
    make("tmpfs", Path::new("/dev/shm"), hard, Some("mode=1777,size=64m"))?;
    for path in MASKED.iter().filter(|path| Path::new(path).exists()) {
        mount_bind("/dev/null", *path).map_err(at(*path))?;
    }
    for path in READ_ONLY.iter().filter(|path| Path::new(path).exists()) {
        mount_bind(*path, *path).map_err(at(*path))?;
        let flags = MountFlags::BIND | MountFlags::RDONLY | hard;
        mount_remount(*path, flags, "").map_err(at(*path))?;
    }
    Ok(())
}

/// Drops every other capability, now and for whatever is started.
fn give_up() -> Result<(), Fault> {
    for (_, capability) in CapabilitySet::all().difference(KEPT).iter_names() {
        remove_capability_from_bounding_set(capability).map_err(at("the bounding set"))?;
    }
    let sets =
        CapabilitySets { effective: KEPT, permitted: KEPT, inheritable: CapabilitySet::empty() };
    set_capabilities(None, sets).map_err(at("capabilities"))
}
