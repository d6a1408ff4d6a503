//! System calls that the filter refuses, with arguments that harm nobody where it does not.

use std::io;

use linux_keyutils::{KeyError, KeyRing, KeyRingIdentifier};
use nix::kmod::{DeleteModuleFlags, delete_module, init_module};
use nix::sys::fanotify::{EventFFlags, Fanotify, InitFlags};
use nix::sys::ptrace;
use nix::sys::quota::{QuotaType, quotactl_sync};
use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::unistd::Pid;
use rustix::process::{PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

use super::answer::{DONE, said, status};
use super::entry::{Probe, probe};

const EPERM: &[&str] = &["EPERM"];

pub const SECCOMP: &[Probe] = &[
    probe("seccomp.mode", "run without a system call filter", &["2"], |_| status("Seccomp")),
    probe("seccomp.io-uring", "make an io_uring", EPERM, |_| said(io_uring::IoUring::new(1))),
    probe("seccomp.init-module", "load a kernel module", EPERM, |_| said(init_module(&[], c""))),
    probe("seccomp.delete-module", "unload a kernel module", EPERM, |_| {
        said(delete_module(c"cofferdam_no_such_module", DeleteModuleFlags::empty()))
    }),
    probe("seccomp.fanotify", "watch every file access", EPERM, |_| {
        said(Fanotify::init(InitFlags::FAN_CLASS_NOTIF, EventFFlags::O_RDONLY))
    }),
    probe("seccomp.quotactl", "reach the disk quotas", EPERM, |_| {
        said(quotactl_sync(QuotaType::USRQUOTA, None::<&str>))
    }),
];

pub const PTRACE: &[Probe] = &[
    probe("ptrace.seize", "trace the agent", EPERM, |_| {
        // Seizing stops nothing, and the end of this process lets go.
        said(ptrace::seize(Pid::from_raw(1), ptrace::Options::empty()))
    }),
    probe("ptrace.read-memory", "read the agent's memory across processes", EPERM, |_| {
        let mut byte = [0];
        // Nothing lies at address 1: where it may be read, it is another error.
        let remote = RemoteIoVec { base: 1, len: 1 };
        said(process_vm_readv(Pid::from_raw(1), &mut [io::IoSliceMut::new(&mut byte)], &[remote]))
    }),
    probe("ptrace.take-file", "take the agent's open files", EPERM, |_| {
        let Some(agent) = rustix::process::Pid::from_raw(1) else { return "no pid".to_owned() };
        said(
            pidfd_open(agent, PidfdFlags::empty())
                .and_then(|pidfd| pidfd_getfd(pidfd, 0, PidfdGetfdFlags::empty())),
        )
    }),
];

pub const KEYRINGS: &[Probe] = &[
    probe("keyring.session", "open the session's keyring", EPERM, |_| {
        key(KeyRing::from_special_id(KeyRingIdentifier::Session, true).map(|_| ()))
    }),
    probe("keyring.user", "open the keyring of the host's root", EPERM, |_| {
        key(KeyRing::from_special_id(KeyRingIdentifier::User, true).map(|_| ()))
    }),
    probe("keyring.persistent", "open the persistent keyring", EPERM, |_| {
        key(KeyRing::get_persistent(KeyRingIdentifier::Process).map(|_| ()))
    }),
];

fn key(result: Result<(), KeyError>) -> String {
    match result {
        Ok(()) => DONE.to_owned(),
        Err(KeyError::PermissionDenied) => "EPERM".to_owned(),
        Err(KeyError::AccessDenied) => "EACCES".to_owned(),
        Err(error) => format!("{error:?}"),
    }
}
