//! The kernel's lock on moves between cgroups, kept ready while a worker runs.
//!
//! A process that is moved between groups must not be forking meanwhile. As it comes, the kernel makes forks cheap
//! and the first move after some 30 ms of none dear: it waits until every processor has taken note, for 8 to 24 ms,
//! longer than all else in a container's life. `favordynmods` ("favor dynamic modifications", Linux 6.0) keeps the
//! lock in the state that a move needs, for a memory barrier in each fork. It is an option of a hierarchy and holds
//! for the whole host; so a hierarchy of our own, with no controller and nobody in it, is enough, and no mount of the
//! host is changed. Nor is it mounted: it lives as long as the file does, and that as long as this process.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock};
use std::thread;

use cofferdam_ambient::env;
use rustix::mount::{FsOpenFlags, fsconfig_create, fsconfig_set_flag, fsconfig_set_string, fsopen};

use crate::host::mounts::MountInfo;

/// What `/proc/<pid>/cgroup` shows of every process meanwhile.
const HIERARCHY: &str = "cofferdam";
const OPTION: &str = "favordynmods";
/// An operator's word that the lock is to stay as the host has it.
const LEAVE: &str = "COFFERDAM_LEAVE_DYNMODS";

/// The hierarchy, once it is there.
#[derive(Debug, Default)]
pub(crate) struct Dynmods(OnceLock<OwnedFd>);

impl Dynmods {
    /// Has it made, which takes as long as the wait that it spares, so nobody waits for it here. A host that
    /// refuses is as slow as before; `doctor` says so.
    pub(crate) fn begin() -> Arc<Self> {
        let dynmods = Arc::new(Self::default());
        let made = Arc::clone(&dynmods);
        thread::spawn(move || favor().map(|file| made.0.set(file)));
        dynmods
    }
}

/// Holds it, unless the operator said not to.
pub(crate) fn favor() -> io::Result<OwnedFd> {
    match env::var_os(LEAVE) {
        Some(_) => Err(io::Error::other(format!("{LEAVE} is set"))),
        None => hold(),
    }
}

/// Makes the hierarchy, or joins another worker's; it goes with the last file.
fn hold() -> io::Result<OwnedFd> {
    let draft = fsopen("cgroup", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_flag(&draft, "none")?;
    fsconfig_set_string(&draft, "name", HIERARCHY)?;
    fsconfig_set_flag(&draft, OPTION)?;
    fsconfig_create(&draft)?;
    Ok(draft)
}

/// Whether somebody mounted a hierarchy so.
pub(crate) fn is_mounted(mounts: &[MountInfo]) -> bool {
    let is_so = |m: &MountInfo| m.options.split(',').any(|option| option == OPTION);
    mounts.iter().any(|m| m.fs.starts_with("cgroup") && is_so(m))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use rustix::process::geteuid;

    use super::*;

    fn is_there() -> bool {
        let groups = fs::read_to_string("/proc/self/cgroup").unwrap();
        groups.lines().any(|line| line.ends_with(":name=cofferdam:/"))
    }

    #[test]
    fn a_hierarchy_is_there_while_it_is_held_and_may_be_held_twice() {
        // Since 6.0, and not from within a cgroup namespace.
        let (Ok(first), true) = (hold(), geteuid().is_root()) else {
            crate::not_run::not_run(OPTION, "this host makes no hierarchy with it");
            return;
        };
        let second = hold().unwrap();
        drop(first);
        assert!(is_there());
        drop(second);
    }

    #[test]
    fn an_option_of_any_hierarchy_is_seen() {
        let mounted = |fs: &str, point: &str, options: &str| {
            [MountInfo { point: point.into(), fs: fs.to_owned(), options: options.to_owned() }]
        };
        assert!(is_mounted(&mounted("cgroup2", "/sys/fs/cgroup", "rw,favordynmods")));
        assert!(!is_mounted(&mounted("cgroup2", "/sys/fs/cgroup", "rw,nsdelegate")));
        assert!(!is_mounted(&mounted("ext4", "/favordynmods", "rw")));
    }
}
