//! Whether the sandbox's namespaces are its own, and whether it can make or join others.

use std::fs::{self, File};
use std::io;

use cofferdam_guest::escape::Setting;
use nix::sched::{CloneFlags, setns, unshare};
use nix::unistd::gethostname;

use super::answer::{failed, said};
use super::entry::{Probe, probe};

const OWN: &[&str] = &["own"];

pub const PROBES: &[Probe] = &[
    probe("ns.pid", "be in the host's pid namespace", OWN, |s| is_own(s, "pid")),
    probe("ns.net", "be in the host's network namespace", OWN, |s| is_own(s, "net")),
    probe("ns.mnt", "be in the host's mount namespace", OWN, |s| is_own(s, "mnt")),
    probe("ns.ipc", "be in the host's ipc namespace", OWN, |s| is_own(s, "ipc")),
    probe("ns.uts", "be in the host's name namespace", OWN, |s| is_own(s, "uts")),
    probe("ns.hostname", "know the host's name", &["cofferdam"], |_| match gethostname() {
        Ok(name) => name.to_string_lossy().into_owned(),
        Err(error) => failed(&error.into()),
    }),
    probe("ns.new-user", "make a user namespace, which gives every capability", &["EPERM"], |_| {
        said(unshare(CloneFlags::CLONE_NEWUSER))
    }),
    probe("ns.new-mount", "make a mount namespace", &["EPERM"], |_| {
        said(unshare(CloneFlags::CLONE_NEWNS))
    }),
    probe("ns.new-net", "make a network namespace", &["EPERM"], |_| {
        said(unshare(CloneFlags::CLONE_NEWNET))
    }),
    probe("ns.new-cgroup", "make a cgroup namespace", &["EPERM"], |_| {
        said(unshare(CloneFlags::CLONE_NEWCGROUP))
    }),
    probe("ns.join", "join a namespace", &["EPERM"], |_| {
        said(
            File::open("/proc/self/ns/uts")
                .and_then(|file| setns(file, CloneFlags::CLONE_NEWUTS).map_err(io::Error::from)),
        )
    }),
];

fn is_own(setting: &Setting, kind: &str) -> String {
    let Some(host) = setting.namespaces.get(kind) else {
        return "the host's is unknown".to_owned();
    };
    match fs::read_link(format!("/proc/self/ns/{kind}")) {
        Ok(here) if here.to_string_lossy() == *host => "the host's".to_owned(),
        Ok(_) => "own".to_owned(),
        Err(error) => failed(&error),
    }
}
