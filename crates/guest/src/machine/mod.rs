//! Pid 1 of a virtual machine.
//!
//! ```text
//! kernel -> init: devices, modules, cgroup tree -> child in namespaces of its own
//!                       port or stream, disk's driver, group -> greeting   <- snapshots are here
//!                                                    setup -> clock, limits, root -> agent
//!           init hands out files when asked, and renews what was stored -> the child ends -> the machine ends
//! ```
//! The kernel's own threads and this process stay outside the task's namespaces, and the task has
//! the few capabilities of any sandbox: inside the machine it is held as in a container.

mod clock;
mod disk;
mod enter;
mod fault;
mod file_server;
mod fill;
mod limit;
mod network;
mod random;
mod restore;
mod stream;
mod trace;
mod vsock;
mod warmup;

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Command, ExitCode};

use cofferdam_guest::setup::{ENTER, MODULES};
use nix::sched::{CloneFlags, unshare};
use rustix::mount::MountFlags;
use rustix::system::{RebootCommand, finit_module, reboot};

pub use enter::run as enter;
use fault::{CGROUPS, Fault, TRACES, at, make, write};
pub use file_server::line as layer_line;
pub use limit::{LayerWatch, counted, no_routes, tried};
pub use warmup::run as rehearse;

/// The driver of the disk is bound last, when nothing is loaded any more: a machine that is stored has
/// read the table of the partitions, which is the same on every disk, and no byte of any.
const DISK_MODULE: &str = "virtio_blk";
const AUTOPROBE: &str = "/sys/bus/virtio/drivers_autoprobe";
/// Runs the machine to its end.
pub fn run() -> ExitCode {
    if let Err(fault) = boot() {
        // The console is the host's log.
        let _ = writeln!(io::stderr(), "cofferdam-machine: {fault}");
    }
    // The host's emulator ends with it; nothing in here needs an orderly end.
    let _ = reboot(RebootCommand::Restart);
    ExitCode::FAILURE
}

fn boot() -> Result<(), Fault> {
    for (kind, path) in
        [("devtmpfs", "/dev"), ("proc", "/proc"), ("sysfs", "/sys"), ("cgroup2", CGROUPS)]
    {
        fs::create_dir_all(path).map_err(at(path))?;
        make(kind, Path::new(path), MountFlags::empty(), None)?;
    }
    // Not every kernel has it.
    if fs::create_dir_all(TRACES).is_ok() {
        let _ = make("tracefs", Path::new(TRACES), MountFlags::empty(), None);
    }
    load_modules()?;
    limit::prepare(Path::new(CGROUPS))?;
    network::loopback_up().map_err(at("loopback"))?;
    let apart = CloneFlags::CLONE_NEWPID | CloneFlags::CLONE_NEWIPC | CloneFlags::CLONE_NEWUTS;
    unshare(apart).map_err(at("namespaces"))?;
    let (ours, theirs) = UnixStream::pair().map_err(at("the agent"))?;
    let mut command = Command::new("/proc/self/exe");
    let started = command.arg(ENTER).env_clear().stdin(OwnedFd::from(theirs)).spawn();
    // What it holds of the other end would hide the agent's.
    drop(command);
    let mut agent = started.map_err(at("the agent"))?;
    if let Err(error) = file_server::serve(&ours, agent.id()) {
        let _ = writeln!(io::stderr(), "cofferdam-machine: the file server: {error}");
    }
    drop(ours);
    let ended = agent.wait().map_err(at("the agent"))?;
    match (ended.code(), ended.signal()) {
        (Some(0), _) => Ok(()),
        (code, signal) => {
            let why = format!("exit {code:?}, signal {signal:?}");
            Err(at("the agent ended")(io::Error::other(why)))
        }
    }
}

fn load_modules() -> Result<(), Fault> {
    let entries = fs::read_dir(MODULES).map_err(at(MODULES))?;
    let mut files: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    files.sort_unstable();
    for file in files {
        let name = file.to_string_lossy().into_owned();
        if name.contains(DISK_MODULE) {
            write(AUTOPROBE, "0")?;
        }
        let module = File::open(&file).map_err(at(&name))?;
        finit_module(&module, c"", 0).map_err(at(&name))?;
    }
    Ok(())
}
