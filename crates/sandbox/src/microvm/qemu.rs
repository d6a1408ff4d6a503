//! QEMU as it is started here.
//!
//! ```text
//! our cgroups [ sh -> unshare (network, processes, mounts, IPC, name)
//!                       -> setpriv (nobody, no capability, no new privileges) -> qemu ]
//!   0 the agent's port   1 the disk's server   2, 5 the console, our log   3 kernel   4 initial files
//! ```
//! It opens no file but those that it inherits, and has no network and no control socket: what it can
//! do on the host is what its own system call filter leaves to user `nobody`.

use std::path::{Path, PathBuf};

use cofferdam_guest::setup::PORT;
use tokio::process::Command;

use super::machine::{Accel, Machine};
use crate::runtime::Runtime;

/// Enters the cgroups, which only a process itself can do without a race, opens what the
/// emulator's user may not look up, and becomes the rest.
const ENTER: &str = "while [ \"$1\" != -- ]; do echo 0 > \"$1\" || exit 125; shift; done; shift; \
                     exec 3< \"$1\" 4< \"$2\" 5>&2 || exit 125; shift 2; exec \"$@\"";
/// `nobody` of every Debian system.
pub(super) const USER: &str = "65534";
/// Bytes of translated code that the emulator keeps. Its default is a gigabyte.
const CODE_MB: u32 = 64;
/// Its console is quiet, its end is a reset, and a fault in it is its end. What it guards against
/// among its own processes is not worth its time: only one sandbox lives in it.
pub(super) const KERNEL_LINE: &str = "console=ttyS0 quiet loglevel=1 reboot=t panic=-1 mitigations=off \
                           8250.nr_uarts=1 cryptomgr.notests random.trust_cpu=on";

/// Timer ticks of Debian's kernels in a second.
const TICKS: u64 = 250;

/// One machine.
pub(super) struct Wanted<'a> {
    pub machine: &'a Machine,
    pub qemu: &'a Runtime,
    /// Ends the list of cgroups that it enters.
    pub groups: &'a [PathBuf],
    pub mem_mb: u64,
    pub cpus: u32,
    /// Name and directory of the sandbox, by which an orphan is found.
    pub id: &'a str,
    pub dir: &'a Path,
}

pub(super) fn command(wanted: &Wanted<'_>) -> Command {
    let Wanted { machine, qemu, groups, mem_mb, cpus, id, dir } = wanted;
    let mut command = Command::new("/bin/sh");
    command
        .args(["-c", ENTER, "sh"])
        .args(groups.iter().map(|group| group.join("cgroup.procs")))
        .arg("--")
        .args([&machine.kernel, &machine.initrd])
        .arg(&machine.unshare)
        .args(["--net", "--ipc", "--uts", "--mount", "--pid", "--fork", "--kill-child"])
        .args(["--mount-proc", "--"])
        .arg(&machine.setpriv)
        .args(["--reuid", USER, "--regid", USER, "--no-new-privs"])
        // Not of unshare: a change of the user undoes what it asked the kernel for.
        .args(["--pdeathsig", "KILL"])
        .args(["--bounding-set=-all", "--inh-caps=-all"]);
    match super::kvm::group(&machine.accel) {
        Some(group) => command.args(["--groups", &group.to_string()]),
        None => command.arg("--clear-groups"),
    };
    command
        .arg("--")
        .arg(&qemu.path)
        .args(["-name", id, "-L"])
        .arg(dir)
        .args(["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"])
        .args(["-machine", "microvm"])
        .args(accel(&machine.accel))
        .args(["-m", &format!("{mem_mb}M"), "-smp", &cpus.to_string()])
        .args(["-kernel", "/proc/self/fd/3", "-initrd", "/proc/self/fd/4"])
        .args(["-append", &kernel_line(machine)])
        .args(["-add-fd", "fd=5,set=1", "-chardev"])
        .args(["file,id=console,path=/dev/fdset/1,append=on", "-serial", "chardev:console"])
        .args(["-chardev", "socket,id=agent,fd=0"])
        .args(["-device", "virtio-serial-device,max_ports=2", "-device"])
        .arg(format!("virtserialport,chardev=agent,name={PORT}"))
        .args(["-blockdev"])
        .arg("driver=nbd,node-name=disk,read-only=on,server.type=fd,server.str=1")
        .args(["-device", "virtio-blk-device,drive=disk", "-sandbox"])
        .arg("on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny");
    command
}

/// An emulated machine measures its processor's clock against a timer that is emulated too. On a busy
/// host that fails, and then the machine stands still: it is told what the host's clock is.
fn kernel_line(machine: &Machine) -> String {
    match (&machine.accel, machine.tsc_khz) {
        (Accel::Software { .. }, Some(khz)) => format!(
            "{KERNEL_LINE} tsc_early_khz={khz} tsc=reliable lpj={} no_timer_check",
            khz.saturating_mul(1_000) / TICKS
        ),
        _ => KERNEL_LINE.to_owned(),
    }
}

fn accel(accel: &Accel) -> [String; 4] {
    let (how, cpu) = match accel {
        Accel::Kvm => ("kvm".to_owned(), "host"),
        Accel::Software { .. } => (format!("tcg,thread=single,tb-size={CODE_MB}"), "max"),
    };
    ["-accel".to_owned(), how, "-cpu".to_owned(), cpu.to_owned()]
}
