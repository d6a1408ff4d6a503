//! Mounts, and what is read-only.

use std::fs::{self, OpenOptions};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use rustix::fs::CWD;
use rustix::mount::{FsOpenFlags, OpenTreeFlags, fsopen, open_tree};
use rustix::process::{chroot, pivot_root};

use super::answer::{NOTHING, failed, first_present, said};
use super::entry::{Probe, probe};

pub const PROBES: &[Probe] = &[
    probe("mount.tmpfs", "mount a tmpfs", &["EPERM"], |_| {
        said(mount(Some("none"), "/tmp", Some("tmpfs"), MsFlags::empty(), None::<&str>))
    }),
    probe("mount.proc", "mount a proc of its own", &["EPERM"], |_| {
        said(mount(Some("proc"), "/tmp", Some("proc"), MsFlags::empty(), None::<&str>))
    }),
    probe("mount.bind", "bind / elsewhere", &["EPERM"], |_| {
        let flags = MsFlags::MS_BIND | MsFlags::MS_REC;
        said(mount(Some("/"), "/tmp", None::<&str>, flags, None::<&str>))
    }),
    probe("mount.remount", "make /usr writable again", &["EPERM"], |_| {
        let flags = MsFlags::MS_REMOUNT | MsFlags::MS_BIND;
        said(mount(None::<&str>, "/usr", None::<&str>, flags, None::<&str>))
    }),
    probe("mount.umount", "unmount /dev/shm", &["EPERM"], |_| {
        said(umount2("/dev/shm", MntFlags::MNT_DETACH))
    }),
    probe("mount.fsopen", "open a file system by the new calls", &["EPERM"], |_| {
        said(fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC))
    }),
    probe("mount.open-tree", "copy the mount tree", &["EPERM"], |_| {
        said(open_tree(CWD, "/", OpenTreeFlags::OPEN_TREE_CLONE))
    }),
    // Neither is a mount point: without the filter's refusal it would be EINVAL, and no harm.
    probe("mount.pivot-root", "change the root mount", &["EPERM"], |_| {
        said(pivot_root("/work", "/work"))
    }),
    probe("mount.chroot", "change the root directory", &["EPERM"], |_| said(chroot("/work"))),
    probe("mount.propagation", "find a mount that is shared with the host", &[NOTHING], |_| {
        match fs::read_to_string("/proc/self/mountinfo") {
            Ok(text) if text.contains(" shared:") => "a shared mount".to_owned(),
            Ok(_) => NOTHING.to_owned(),
            Err(error) => failed(&error),
        }
    }),
    probe("mount.usr", "make a file in /usr", &["EROFS"], |_| create("/usr/.probe")),
    probe("mount.usr-bin", "write to a program of the host", &["EROFS"], |_| {
        said(OpenOptions::new().append(true).open("/usr/bin/env"))
    }),
    probe("mount.host-files", "find the host's secrets and homes", &[NOTHING], |_| {
        first_present(["/etc/shadow", "/etc/ssh", "/root/.ssh", "/boot", "/var/lib/dpkg"])
    }),
    probe("mount.host-state", "find the directories of sandboxes", &[NOTHING], |setting| {
        first_present(setting.host_dirs.iter().map(String::as_str))
    }),
    probe("mount.sockets", "find a control socket of the host", &[NOTHING], |_| {
        first_present([
            "/run/docker.sock",
            "/run/containerd/containerd.sock",
            "/run/dbus/system_bus_socket",
            "/run/systemd/private",
            "/run/podman/podman.sock",
        ])
    }),
];

fn create(path: &str) -> String {
    let made = OpenOptions::new().write(true).create_new(true).open(path);
    if made.is_ok() {
        // Only where the sandbox does not hold; the file is not to stay then.
        let _ = fs::remove_file(path);
    }
    said(made)
}
