//! System calls that kernel exploits begin with, or that need a capability that no task has. They fail with EPERM,
//! so that a program knows that it may not; what is on neither list does not exist (ENOSYS).

use super::call::{Call, calls};

pub(super) const COMMON: &[Call] = calls! {
    SYS_acct SYS_add_key SYS_bpf SYS_clock_settime SYS_delete_module SYS_fanotify_init
    SYS_finit_module SYS_fsconfig SYS_fsmount SYS_fsopen SYS_fspick SYS_init_module
    SYS_io_uring_enter SYS_io_uring_register SYS_io_uring_setup SYS_kcmp SYS_kexec_file_load
    SYS_kexec_load SYS_keyctl SYS_lookup_dcookie SYS_mbind SYS_migrate_pages SYS_mount
    SYS_mount_setattr SYS_move_mount SYS_move_pages SYS_name_to_handle_at SYS_nfsservctl
    SYS_open_by_handle_at SYS_open_tree SYS_perf_event_open SYS_pidfd_getfd SYS_pivot_root
    SYS_process_madvise SYS_quotactl SYS_quotactl_fd SYS_reboot SYS_request_key SYS_set_mempolicy SYS_setdomainname SYS_sethostname
    SYS_setns SYS_settimeofday SYS_swapoff SYS_swapon SYS_syslog SYS_umount2 SYS_unshare
    SYS_userfaultfd SYS_vhangup SYS_vmsplice
};

/// Those that services with roots of their own need.
pub(super) const ROOTS: &[Call] = calls! { SYS_chroot };

/// Those that only x86-64 has.
#[cfg(target_arch = "x86_64")]
pub(super) const OLD: &[Call] = calls! { SYS_ioperm SYS_iopl SYS_modify_ldt SYS_sysfs };
#[cfg(not(target_arch = "x86_64"))]
pub(super) const OLD: &[Call] = &[];
