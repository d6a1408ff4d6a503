//! An agent that is not the first process of its sandbox: somebody else holds it, and has processes of
//! their own in there.
//!
//! Nothing is killed but what descends from us. We adopt what a command leaves behind, so that a daemon
//! still does; whoever is started by the provider's own processes on a command's behalf does not, and ends
//! with the sandbox.
//!
//! ```text
//! provider --stdin, stdout--> agent <--socket-- attach <--stdin, stdout-- provider
//! ```
//! It outlives its stream: the host's worker may be lost, or what is between them may cut it. The next
//! stream comes by another process, which [`attach`]es to the agent's socket.

use std::collections::HashSet;
use std::fs::{Permissions, remove_file, set_permissions};
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::fs::PermissionsExt as _;

use cofferdam_guest::job::SOCKET;
use rustix::process::{Pid, Signal, getpid, kill_process, set_child_subreaper};
use tokio::io::copy;
use tokio::net::unix::pipe::{Receiver, Sender};
use tokio::net::{UnixListener, UnixStream};

use super::reaper::{descends, parents};

/// Looks until nobody new is found. Who is found is stopped and forks no more, so even a bomb has one
/// generation for each look.
const LOOKS: usize = 1_000;

/// From now on orphans among our descendants are our children.
pub(super) fn adopt() -> io::Result<()> {
    // Of the number the kernel only asks whether it is 0.
    Ok(set_child_subreaper(Some(getpid()))?)
}

/// Where the next stream comes from. Root alone may use it.
pub(super) fn listen() -> io::Result<UnixListener> {
    match remove_file(SOCKET) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(SOCKET)?;
    set_permissions(SOCKET, Permissions::from_mode(0o600))?;
    Ok(listener)
}

/// See [`super::attach`]. The provider gives its processes pipes.
pub(super) async fn attach() -> io::Result<()> {
    let (mut from_agent, mut to_agent) = UnixStream::connect(SOCKET).await?.into_split();
    let own = |fd: std::os::fd::BorrowedFd<'_>| fd.try_clone_to_owned();
    let mut input = Receiver::from_owned_fd(own(io::stdin().as_fd())?)?;
    let mut output = Sender::from_owned_fd(own(io::stdout().as_fd())?)?;
    tokio::select! {
        ended = copy(&mut input, &mut to_agent) => ended.map(drop),
        ended = copy(&mut from_agent, &mut output) => ended.map(drop),
    }
}

/// Kills every descendant but the services and theirs. Where they outrun us the agent ends itself, and
/// with it the sandbox: nobody would know what still runs.
pub(super) fn kill_descendants(services: &HashSet<i32>) {
    let own = getpid();
    let mut stopped = HashSet::new();
    for _ in 0..LOOKS {
        let found = strangers(own.as_raw_pid(), services);
        let new: Vec<i32> = found.into_iter().filter(|pid| !stopped.contains(pid)).collect();
        if new.is_empty() {
            for pid in stopped {
                send(pid, Signal::KILL);
            }
            return;
        }
        for pid in new {
            send(pid, Signal::STOP);
            stopped.insert(pid);
        }
    }
    let _ = kill_process(own, Signal::KILL);
}

/// A process that has ended meanwhile needs no signal.
pub(super) fn send(pid: i32, signal: Signal) {
    let _ = Pid::from_raw(pid).map(|pid| kill_process(pid, signal));
}

fn strangers(own: i32, services: &HashSet<i32>) -> Vec<i32> {
    let parents = parents();
    let ours = HashSet::from([own]);
    let all = parents.keys().copied().filter(|pid| *pid != own);
    all.filter(|pid| descends(*pid, &ours, &parents) && !descends(*pid, services, &parents))
        .collect()
}
