//! The group of a service. When the main process of a service ends, its manager kills whatever is in that group.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use nix::sys::signal::{SigSet, Signal};

use crate::host::mounts::{self, MountInfo};
use crate::host::traces::CGROUP_PARENT;

/// Group of the processes that outlive the worker which started them.
const OUTLIVING: &str = "outliving";

/// Moves this process out of the group of its service, in each tree by which managers of services find processes: version 2,
/// and the one of version 1 that is called `systemd`.
///
/// # Errors
/// The mounts cannot be read, or the kernel refuses the group.
pub fn leave_service() -> io::Result<()> {
    for tree in managed(&mounts::mounted()?) {
        enter(&tree.join(CGROUP_PARENT).join(OUTLIVING), std::process::id())?;
    }
    Ok(())
}

/// From here on this process and its threads do not hear of hang-ups: of a terminal, or of a parent whose process group is left
/// alone. Call it before any thread is started.
///
/// # Errors
/// The kernel refuses it.
pub fn outlive_hangup() -> io::Result<()> {
    let mut hangup = SigSet::empty();
    hangup.add(Signal::SIGHUP);
    hangup.thread_block().map_err(io::Error::from)
}

/// Where the trees are mounted. Pure.
fn managed(all: &[MountInfo]) -> Vec<PathBuf> {
    let named = |one: &&MountInfo| match one.fs.as_str() {
        "cgroup2" => true,
        "cgroup" => one.options.split(',').any(|option| option == "name=systemd"),
        _ => false,
    };
    all.iter().filter(named).map(|one| one.point.clone()).collect()
}

fn enter(group: &Path, pid: u32) -> io::Result<()> {
    fs::create_dir_all(group)?;
    fs::write(group.join("cgroup.procs"), pid.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    use rustix::mount::{MountFlags, mount};

    #[test]
    fn only_the_trees_of_service_managers_are_left() {
        let of = |fs: &str, options: &str, point: &str| MountInfo {
            point: point.into(),
            fs: fs.into(),
            options: options.into(),
        };
        let all = [
            of("cgroup", "rw,memory", "/m"),
            of("cgroup", "rw,xattr,name=systemd", "/s"),
            of("cgroup2", "rw", "/u"),
            of("tmpfs", "rw,name=systemd", "/t"),
        ];
        assert_eq!(managed(&all), [PathBuf::from("/s"), PathBuf::from("/u")]);
    }

    #[test]
    fn a_process_is_moved_to_a_group_that_no_manager_knows() {
        mounts::enter_private_mounts().expect("these tests need root");
        let tree = tempfile::tempdir().unwrap();
        mount("cgroup2", tree.path(), "cgroup2", MountFlags::empty(), None).unwrap();
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let group = tree.path().join(format!("service-test-{}", child.id()));
        enter(&group, child.id()).unwrap();
        let inside = fs::read_to_string(group.join("cgroup.procs")).unwrap();
        assert_eq!(inside.trim(), child.id().to_string());
        child.kill().unwrap();
        child.wait().unwrap();
        fs::remove_dir(&group).unwrap();
        mounts::detach(tree.path()).unwrap();
    }
}
