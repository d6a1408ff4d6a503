//! System calls that no task needs, each with arguments that harm nobody where it is let through.

use libc::*;

use super::entry::{Probe, Run};
use super::table::calls;

/// Refused, or not there at all.
const NO: &[&str] = &["EPERM", "ENOSYS"];
/// Where the filter ends: what a call says then that is let through, and needs a capability.
const NEEDS_A_CAPABILITY: &[&str] = &["EPERM", "EACCES"];

/// A flag of `clone` that makes every `clone` without `CLONE_VM` invalid: no child is ever made.
const NEVER: c_long = 0x0800;

pub const COMMON: &[Probe] = calls!(NO, [
    "acct" SYS_acct, [1];
    "add_key" SYS_add_key, [1, 1, 0, 0, 0];
    "bpf.map" SYS_bpf, [0, 1, 8];
    "bpf.program" SYS_bpf, [5, 1, 8];
    "chroot" SYS_chroot, [1];
    "clock_settime" SYS_clock_settime, [0, 1];
    "clone.newns" SYS_clone, [0x0002_0000 | NEVER];
    "clone.newcgroup" SYS_clone, [0x0200_0000 | NEVER];
    "clone.newuts" SYS_clone, [0x0400_0000 | NEVER];
    "clone.newipc" SYS_clone, [0x0800_0000 | NEVER];
    "clone.newuser" SYS_clone, [0x1000_0000 | NEVER];
    "clone.newpid" SYS_clone, [0x2000_0000 | NEVER];
    "clone.newnet" SYS_clone, [0x4000_0000 | NEVER];
    "clone3" SYS_clone3, [1, 0];
    "delete_module" SYS_delete_module, [1, 0];
    "fanotify_init" SYS_fanotify_init, [0, 0];
    "fanotify_mark" SYS_fanotify_mark, [-1, 1, 1, -1, 1];
    "finit_module" SYS_finit_module, [-1, 1, 0];
    "fsconfig" SYS_fsconfig, [-1, 6, 0, 0, 0];
    "fsmount" SYS_fsmount, [-1, 0, 0];
    "fsopen" SYS_fsopen, [1, 0];
    "fspick" SYS_fspick, [-1, 1, 0];
    "get_mempolicy" SYS_get_mempolicy, [1, 0, 0, 0, 0];
    "init_module" SYS_init_module, [1, 0, 1];
    "io_cancel" SYS_io_cancel, [0, 1, 1];
    "io_destroy" SYS_io_destroy, [0];
    "io_getevents" SYS_io_getevents, [0, 1, 1, 1, 0];
    "io_setup" SYS_io_setup, [1, 1];
    "io_submit" SYS_io_submit, [0, 1, 1];
    "io_uring_enter" SYS_io_uring_enter, [-1, 0, 0, 0];
    "io_uring_register" SYS_io_uring_register, [-1, 0, 0, 0];
    "io_uring_setup" SYS_io_uring_setup, [1, 1];
    "kcmp" SYS_kcmp, [1, 1, 0, 0, 0];
    "kexec_file_load" SYS_kexec_file_load, [-1, -1, 0, 1, 0];
    "kexec_load" SYS_kexec_load, [0, 1, 1, -1];
    "keyctl.session" SYS_keyctl, [0, -3, 0];
    "keyctl.link" SYS_keyctl, [8, -4, -3];
    "keyctl.persistent" SYS_keyctl, [22, -1, -3];
    "listmount" 458, [1, 1, 1, 0];
    "listns" 470, [1, 1, 1, 0];
    "lookup_dcookie" SYS_lookup_dcookie, [0, 1, 0];
    "lsm_get_self_attr" 459, [100, 1, 1, 0];
    "lsm_list_modules" 461, [1, 1, 0];
    "lsm_set_self_attr" 460, [100, 1, 0, 0];
    "map_shadow_stack" 453, [0, 0, 0];
    "mbind" SYS_mbind, [0, 0, 0, 0, 0, 0];
    "memfd_secret" 447, [-1];
    "migrate_pages" SYS_migrate_pages, [1, 0, 0, 0];
    "mount" SYS_mount, [1, 1, 1, 0, 0];
    "mount_setattr" SYS_mount_setattr, [-1, 1, 0, 1, 32];
    "move_mount" SYS_move_mount, [-1, 1, -1, 1, 0];
    "move_pages" SYS_move_pages, [1, 0, 0, 0, 0, 0];
    "name_to_handle_at" SYS_name_to_handle_at, [-1, 1, 1, 1, 0];
    "nfsservctl" SYS_nfsservctl, [0, 1, 1];
    "open_by_handle_at" SYS_open_by_handle_at, [-1, 1, 0];
    "open_tree" SYS_open_tree, [-1, 1, 1];
    "open_tree_attr" 467, [-1, 1, 1, 1, 32];
    "perf_event_open" SYS_perf_event_open, [1, 0, -1, -1, 0];
    "personality.no-randomize" SYS_personality, [0x004_0000];
    "personality.read-implies-exec" SYS_personality, [0x040_0000];
    "personality.other-name" SYS_personality, [0x002_0000];
    "personality.mmap-zero" SYS_personality, [0x010_0000];
    "pidfd_getfd" SYS_pidfd_getfd, [-1, 0, 0];
    "pivot_root" SYS_pivot_root, [1, 1];
    "prlimit.agent-files" SYS_prlimit64, [1, 7, 0, 0];
    "prlimit.agent-memory" SYS_prlimit64, [1, 9, 0, 0];
    "prlimit.agent-processes" SYS_prlimit64, [1, 6, 0, 0];
    "prlimit.agent-time" SYS_prlimit64, [1, 0, 0, 0];
    "prlimit.agent-signals" SYS_prlimit64, [1, 11, 0, 0];
    "process_madvise" SYS_process_madvise, [-1, 1, 1, 4, 0];
    "quotactl" SYS_quotactl, [-1, 1, 0, 1];
    "quotactl_fd" SYS_quotactl_fd, [-1, 0, 0, 0];
    "reboot" SYS_reboot, [0, 0, 0, 0];
    "request_key" SYS_request_key, [1, 1, 1, 0];
    "set_mempolicy" SYS_set_mempolicy, [0, 0, 0];
    "set_mempolicy_home_node" 450, [0, 0, 0, 1];
    "setdomainname" SYS_setdomainname, [1, 1];
    "sethostname" SYS_sethostname, [1, 1];
    "setns.any" SYS_setns, [-1, 0];
    "settimeofday" SYS_settimeofday, [1, 0];
    "statmount" 457, [1, 1, 1, 0];
    "swapoff" SYS_swapoff, [1];
    "swapon" SYS_swapon, [1, 0];
    "syslog.size" SYS_syslog, [10, 0, 0];
    "syslog.read" SYS_syslog, [3, 1, 1];
    "umount2" SYS_umount2, [1, 0];
    "unshare.newns" SYS_unshare, [0x0002_0000];
    "unshare.newcgroup" SYS_unshare, [0x0200_0000];
    "unshare.newuts" SYS_unshare, [0x0400_0000];
    "unshare.newipc" SYS_unshare, [0x0800_0000];
    "unshare.newuser" SYS_unshare, [0x1000_0000];
    "unshare.newpid" SYS_unshare, [0x2000_0000];
    "unshare.newnet" SYS_unshare, [0x4000_0000];
    "unshare.newtime" SYS_unshare, [0x80];
    "userfaultfd" SYS_userfaultfd, [0];
    "vhangup" SYS_vhangup, [];
    "vmsplice" SYS_vmsplice, [-1, 1, 1, 0];
]);

/// Calls of x86-64 alone, the older the worse kept.
#[cfg(target_arch = "x86_64")]
pub const OLD: &[Probe] = calls!(NO, [
    "_sysctl" SYS__sysctl, [1];
    "afs_syscall" SYS_afs_syscall, [];
    "create_module" 174, [1, 0];
    "get_kernel_syms" 177, [1];
    "io_pgetevents" 333, [0, 1, 1, 1, 0, 0];
    "getpmsg" SYS_getpmsg, [-1, 0, 0];
    "ioperm" SYS_ioperm, [0x80, 1, 1];
    "iopl" SYS_iopl, [3];
    "modify_ldt.read" SYS_modify_ldt, [0, 0, 0];
    "modify_ldt.write" SYS_modify_ldt, [1, 1, 16];
    "putpmsg" SYS_putpmsg, [-1, 0, 0];
    "query_module" 178, [1, 0, 0];
    "security" SYS_security, [];
    "sysfs" SYS_sysfs, [3, 0, 0];
    "tuxcall" SYS_tuxcall, [];
    "uselib" SYS_uselib, [1];
    "ustat" SYS_ustat, [0, 1];
    "vserver" SYS_vserver, [];
]);
#[cfg(not(target_arch = "x86_64"))]
pub const OLD: &[Probe] = &[];

/// Calls that a task makes, where the kernel's own check stands.
pub const CHECKED: &[Probe] = calls!(NEEDS_A_CAPABILITY, [
    "ioprio_set.realtime" SYS_ioprio_set, [1, 0, 1 << 13];
    "prctl.drop-bound" SYS_prctl, [24, 0, 0, 0, 0];
    "prctl.io-flusher" SYS_prctl, [57, 1, 0, 0, 0];
    "prctl.keep-ambient" SYS_prctl, [47, 2, 21, 0, 0];
    "prctl.memory-map" SYS_prctl, [35, 1, 0, 0, 0];
    "prctl.secure-bits" SYS_prctl, [28, 1, 0, 0, 0];
    "setpriority.agent" SYS_setpriority, [0, 1, -20];
]);

/// `F_SETLEASE` makes everybody else who opens the file wait; `F_NOTIFY` tells what others do.
pub const LEASES: &[Probe] = &[
    Probe {
        id: "lease.read",
        tries: "have others wait who open a program of the host",
        expected: &["EPERM", "EACCES", "EAGAIN"],
        run: Run::By(|_| control("/usr/bin/env", 1_024, 0)),
    },
    Probe {
        id: "lease.write",
        tries: "have others wait who read a program of the host",
        expected: &["EPERM", "EACCES", "EAGAIN"],
        run: Run::By(|_| control("/usr/bin/env", 1_024, 1)),
    },
    Probe {
        id: "lease.notify",
        tries: "hear what others do in a directory of the host",
        expected: &["EPERM", "EACCES"],
        run: Run::By(|_| control("/usr/bin", 1_026, 1)),
    },
];

fn control(path: &str, command: c_long, argument: c_long) -> String {
    use std::os::fd::AsRawFd as _;
    match std::fs::File::open(path) {
        // It ends with this process.
        Ok(file) => {
            let descriptor = c_long::from(file.as_raw_fd());
            let way = super::attempt::ProbeAttempt::Call;
            way(SYS_fcntl, [descriptor, command, argument, 0, 0, 0]).go()
        }
        Err(error) => super::answer::failed(&error),
    }
}
