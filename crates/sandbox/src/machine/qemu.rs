//! QEMU as it is started here.
//!
//! ```text
//! our cgroups, namespaces of its own, nobody [ qemu ]
//!   0 the agent's port   1 the disk's server   2, 5 the console, our log   3 kernel   4 initial files
//!   10.. a control socket; of one that is restored: what it was
//! ```
//! It opens no file but those that it inherits, and has no network. At the other end of its control socket is this worker alone: the
//! socket has no name, and nothing in the machine leads to it. What the emulator can do on the host is what its own system call
//! filter leaves to user `nobody`.

use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cofferdam_guest::setup::PORT;
use rustix::io::{FdFlags, fcntl_dupfd_cloexec, fcntl_setfd};
use tokio::process::Command;

use super::launcher::{self, LauncherCommand};
use super::shape::Shape;
use crate::host::runtime::Runtime;
use crate::spec::machine::{Accel, Machine};

/// Its console is our log.
const OPEN: &str = "3< \"$1\" 4< \"$2\" 5>&2";
/// Bytes of translated code that the emulator keeps. Its default is a gigabyte.
const CODE_MB: u32 = 64;
/// Its console is quiet, its end is a reset, and a fault in it is its end. What it guards against
/// among its own processes is not worth its time: only one sandbox lives in it.
pub(super) const KERNEL_LINE: &str = "console=ttyS0 quiet loglevel=1 reboot=t panic=-1 mitigations=off \
                           8250.nr_uarts=1 cryptomgr.notests random.trust_cpu=on rcupdate.rcu_expedited=1";

/// Programs lie where they lie each time until there is a sandbox: translated code is known again by its
/// place. The init ends that before it takes one in.
const SAME_PLACES: &str = "norandmaps";
/// Timer ticks of Debian's kernels in a second.
const TICKS: u64 = 250;

/// The first number of what is lent: a shell names none beyond 9, so it redirects none of these.
const FIRST_LENT: RawFd = 10;

/// How a machine begins.
pub(super) enum Start<'a> {
    /// With a kernel that boots.
    Boot,
    /// As it was stored, in a file that is lent.
    Restore(&'a InheritedFd),
}

/// What an emulator inherits beyond the usual three. Nothing else that is started here does: the
/// number is closed on execution everywhere but in the process that it is opened for.
#[derive(Debug)]
pub(crate) struct InheritedFd(Arc<OwnedFd>);

impl InheritedFd {
    pub fn new(fd: BorrowedFd<'_>) -> io::Result<Self> {
        Ok(Self(Arc::new(fcntl_dupfd_cloexec(fd, FIRST_LENT)?)))
    }

    pub fn number(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    #[expect(unsafe_code, reason = "what a child does before it executes has no safe wrapper")]
    pub fn open_in(&self, command: &mut Command) {
        let own = Arc::clone(&self.0);
        let open = move || Ok(fcntl_setfd(own.as_ref(), FdFlags::empty())?);
        // SAFETY: between fork and exec it makes one call of fcntl(2), which is async-signal-safe, on a
        // number that its own handle keeps open; it allocates nothing and takes no lock.
        unsafe { command.pre_exec(open) };
    }
}

/// What one command line of QEMU is made of.
pub(super) struct QemuInput<'a> {
    pub machine: &'a Machine,
    pub qemu: &'a Runtime,
    /// Ends the list of cgroups that it enters.
    pub groups: &'a [PathBuf],
    pub shape: Shape,
    /// Name and directory of the sandbox, by which an orphan is found.
    pub id: &'a str,
    pub dir: &'a Path,
    pub start: &'a Start<'a>,
}

pub(super) fn command(wanted: &QemuInput<'_>) -> Command {
    let QemuInput { machine, qemu, groups, shape, id, dir, start } = wanted;
    let files = match start {
        Start::Boot => [machine.kernel.as_path(), machine.initrd.as_path()],
        // Both are in its memory.
        Start::Restore(_) => [Path::new("/dev/null"); 2],
    };
    let mut command = launcher::command(&LauncherCommand {
        machine,
        groups,
        open: OPEN,
        files,
        writes_nothing: Some(&qemu.path),
        named: None,
    });
    command.arg(&qemu.path).args(["-name", id, "-L"]).arg(dir).args([
        "-nodefaults",
        "-no-user-config",
        "-display",
        "none",
        "-no-reboot",
        "-machine",
        "microvm",
    ]);
    command
        .args(accel(&machine.accel))
        .args(["-m", &format!("{}M", shape.mem_mb), "-smp", &shape.cpus.to_string()])
        .args(["-add-fd", "fd=5,set=1", "-chardev"])
        .args(["file,id=console,path=/dev/fdset/1,append=on", "-serial", "chardev:console"])
        .args(["-chardev", "socket,id=agent,fd=0"])
        .args(["-device", "virtio-serial-device,max_ports=2", "-device"])
        .arg(format!("virtserialport,chardev=agent,name={PORT}"))
        .args(["-blockdev"])
        .arg("driver=nbd,node-name=disk,read-only=on,server.type=fd,server.str=1")
        .args(["-device", "virtio-blk-device,drive=disk", "-sandbox"])
        .arg("on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny");
    if !matches!(start, Start::Restore(_)) {
        command
            .args(["-kernel", "/proc/self/fd/3", "-initrd", "/proc/self/fd/4"])
            .args(["-append", &kernel_line(machine)]);
    }
    match start {
        Start::Boot => {}
        Start::Restore(lent) => {
            command.args(["-incoming", &format!("fd:{}", lent.number())]);
            lent.open_in(&mut command);
        }
    }
    command
}

/// Has it take orders on a socket.
pub(super) fn control(command: &mut Command, socket: &InheritedFd) {
    let control = format!("socket,id=control,fd={}", socket.number());
    command.args(["-chardev", &control, "-mon", "chardev=control,mode=control"]);
    socket.open_in(command);
}

/// An emulated machine measures its processor's clock against a timer that is emulated too. On a busy
/// host that fails, and then the machine stands still: it is told what the host's clock is.
pub(super) fn kernel_line(machine: &Machine) -> String {
    match (&machine.accel, machine.tsc_khz) {
        (Accel::Software { .. }, Some(khz)) => format!(
            "{KERNEL_LINE} {SAME_PLACES} tsc_early_khz={khz} tsc=reliable lpj={} no_timer_check",
            khz.saturating_mul(1_000) / TICKS
        ),
        (Accel::Software { .. }, None) => format!("{KERNEL_LINE} {SAME_PLACES}"),
        (Accel::Kvm, _) => KERNEL_LINE.to_owned(),
    }
}

fn accel(accel: &Accel) -> [String; 4] {
    let (how, cpu) = match accel {
        Accel::Kvm => ("kvm".to_owned(), "host"),
        Accel::Software { .. } => (format!("tcg,thread=single,tb-size={CODE_MB}"), "max"),
    };
    ["-accel".to_owned(), how, "-cpu".to_owned(), cpu.to_owned()]
}
