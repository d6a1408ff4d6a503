//! The init's other work while the machine is a sandbox's: it hands out its files, and renews a machine that was stored. See
//! [`cofferdam_guest::layer_stream`].
//!
//! It is outside of the task's namespaces and has every capability, so it reads the layer itself and not what the task sees of
//! it. The agent is of the task's group, which is frozen meanwhile: it leaves it for as long.

use std::io::{self, BufWriter, Read as _, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use cofferdam_guest::layer_stream::{GO, GONE_ON, HOLD, MAX_KEPT_PIECE, RESTORE, RISEN};
use cofferdam_guest::pieces::PieceWriter;
use cofferdam_guest::upper;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::fault::{CGROUPS, write};
use super::stream::Stream;
use super::{disk, limit, restore};
use crate::agent::sleep_blocking_ms;

/// Looks whether every process stands still, a millisecond apart.
const STILL_TRIES: usize = 10_000;

/// The agent's end of the talk with the init.
static LINE: OnceLock<UnixStream> = OnceLock::new();

/// What the agent keeps of the init.
pub(super) fn file_server_line(line: UnixStream) {
    // It is set once: there is one entry in a machine's life.
    let _ = LINE.set(line);
}

/// The way to the init; `None` outside of a machine.
pub fn line() -> Option<&'static UnixStream> {
    LINE.get()
}

/// Does what the agent asks for, until it has ended.
pub(super) fn serve(agent: &UnixStream, pid: u32) -> io::Result<()> {
    let mut port = restore::take_restored(agent)?;
    let mut to = agent;
    while let Some(word) = asked(agent, &mut port)? {
        if word != HOLD {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let kept = hold(pid).and_then(|()| pack(agent));
        pieces(agent).finish(kept.is_ok())?;
        if let Err(why) = kept {
            let why: String = why.to_string().chars().take(512).collect();
            pieces(agent).write_all(why.as_bytes())?;
        }
        if asked(agent, &mut port)? != Some(GO) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        go_on(pid)?;
        to.write_all(&[GONE_ON])?;
    }
    Ok(())
}

/// The agent's next word; `None` where it has ended. A morning may come before any.
fn asked(agent: &UnixStream, port: &mut Stream) -> io::Result<Option<u8>> {
    let (mut from, mut to) = (agent, agent);
    let mut word = [0];
    loop {
        match (from.read(&mut word)?, word) {
            (0, _) => return Ok(None),
            (_, [RESTORE]) => {
                restore::rise(port)?;
                to.write_all(&[RISEN])?;
            }
            (_, [word]) => return Ok(Some(word)),
        }
    }
}

fn pieces(agent: &UnixStream) -> PieceWriter<&UnixStream> {
    PieceWriter::to(agent, MAX_KEPT_PIECE)
}

fn pack(agent: &UnixStream) -> io::Result<()> {
    let mut out = BufWriter::with_capacity(MAX_KEPT_PIECE, pieces(agent));
    // Whoever asked says no more until there is nobody who waits for the files.
    upper::pack(Path::new(disk::UPPER), 0, &mut out, &|| !is_told(agent))?;
    out.flush()
}

fn is_told(agent: &UnixStream) -> bool {
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    let mut asked = [PollFd::new(agent, PollFlags::IN)];
    poll(&mut asked, Some(&at_once)).is_ok_and(|told| told > 0)
}

/// The agent leaves, and everybody else stops.
fn hold(pid: u32) -> io::Result<()> {
    let fault = io::Error::other;
    write(group(limit::APART).join("cgroup.procs"), &pid.to_string()).map_err(fault)?;
    let task = group(limit::TASK);
    write(task.join("cgroup.freeze"), "1").map_err(fault)?;
    for _ in 0..STILL_TRIES {
        let events = std::fs::read_to_string(task.join("cgroup.events"))?;
        if events.lines().any(|line| line == "frozen 1") {
            return Ok(());
        }
        sleep_blocking_ms(1);
    }
    Err(io::Error::new(io::ErrorKind::TimedOut, "its processes did not stop in time"))
}

fn go_on(pid: u32) -> io::Result<()> {
    let task = group(limit::TASK);
    write(task.join("cgroup.freeze"), "0").map_err(io::Error::other)?;
    write(task.join("cgroup.procs"), &pid.to_string()).map_err(io::Error::other)
}

fn group(name: &str) -> PathBuf {
    Path::new(CGROUPS).join(name)
}
