//! The mount namespace of a sandbox, in which the worker mounts for it.
//!
//! ```text
//! sandbox: /proc [masks]   --a thread of the worker enters, copies the mount with all below it-->   ROOT/proc [masks]
//! ```
//! A copy shows what its source shows: the same process view, read-only parts and masks. A sandbox cannot mount, and a runtime
//! mounts a `/proc` at the root alone (crun 1.8), so neither of them does this.

use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::thread;

use nix::sched::{CloneFlags, setns, unshare};
use rustix::mount::{MoveMountFlags, move_mount};

use super::process::Process;
use super::tenant_root::{self, TenantRoot};

/// Held open: it stays this one's after its processes have ended.
#[derive(Debug)]
pub(crate) struct MountNamespace(File);

impl MountNamespace {
    /// The one of a process.
    ///
    /// # Errors
    /// The process has ended, or has the mounts of this worker.
    pub(crate) fn of(process: Process) -> io::Result<Self> {
        let path = format!("/proc/{}/ns/mnt", process.pid);
        let held = File::open(&path)?;
        let (its, ours) = (fs::read_link(&path)?, fs::read_link("/proc/self/ns/mnt")?);
        // Looked at last: then everything before was this process's.
        if !process.is_alive() {
            return Err(io::Error::new(io::ErrorKind::NotFound, "the process has ended"));
        }
        match its == ours {
            true => Err(io::Error::other("the process has the mounts of this worker")),
            false => Ok(Self(held)),
        }
    }

    /// Shows these directories of its root, with all that is mounted in them, in each of these directories too.
    ///
    /// # Errors
    /// One of them is missing, or a link leads to it.
    pub(crate) fn repeat(&self, names: &[&str], roots: &[String]) -> io::Result<()> {
        // The thread ends in there: none that goes on ever moves.
        thread::scope(|scope| match scope.spawn(|| self.enter(names, roots)).join() {
            Ok(shown) => shown,
            Err(panic) => std::panic::resume_unwind(panic),
        })
    }

    fn enter(&self, names: &[&str], roots: &[String]) -> io::Result<()> {
        // A thread that shares its root and directory with others may not change namespaces.
        unshare(CloneFlags::CLONE_FS)?;
        setns(&self.0, CloneFlags::CLONE_NEWNS)?;
        let tree = TenantRoot::open(Path::new("/"), 0)?;
        let flags =
            MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
        for name in names {
            let from = tree.found(Path::new(name))?;
            for root in roots {
                let copy = tenant_root::copy_of(&from)?;
                let at = tree.found(&Path::new(root).join(name))?;
                move_mount(&copy, "", &at, "", flags)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neither_this_workers_mounts_nor_those_of_an_ended_process_are_entered() {
        let own = Process::of(std::process::id()).unwrap();
        let error = MountNamespace::of(own).unwrap_err().to_string();
        assert!(error.contains("the mounts of this worker"), "{error}");
        let gone = Process { started: own.started + 1, ..own };
        assert_eq!(MountNamespace::of(gone).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
