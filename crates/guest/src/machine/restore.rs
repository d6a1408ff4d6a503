//! The first thing in the next life of a machine that was stored with its sandbox: fresh randomness and the time.
//!
//! ```text
//! before there is a task:  enter --the port, beside a byte--> init, which keeps it
//! the agent woke:          agent --RESTORE--> init <--stream--> host    and then the agent has the stream again
//! ```
//! Only the init may set either. It has the port from before there was a task, so that no task tells it another one.

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use cofferdam_guest::setup::{READY, RestoreSetup};
use cofferdam_guest::sleep::AWAKE;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

use super::fault::{Fault, at};
use super::stream::Stream;
use super::{clock, random};

/// What the port goes beside.
const BESIDE: &[u8] = b"p";

/// Gives the init the port.
pub(super) fn show(line: &UnixStream, port: &impl AsFd) -> io::Result<()> {
    let fds = [port.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut extra = SendAncillaryBuffer::new(&mut space);
    if !extra.push(SendAncillaryMessage::ScmRights(&fds)) {
        return Err(io::ErrorKind::OutOfMemory.into());
    }
    sendmsg(line, &[IoSlice::new(BESIDE)], &mut extra, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Receives the port that [`show`] sent; an error where none came.
pub(super) fn take_restored(line: &UnixStream) -> io::Result<Stream> {
    let mut beside = [0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut extra = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(&mut beside)];
    recvmsg(line, &mut parts, &mut extra, RecvFlags::CMSG_CLOEXEC)?;
    let port = extra.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    });
    Stream::new(File::from(port.ok_or(io::ErrorKind::UnexpectedEof)?))
}

/// Hears what is new and sets it. A fault is told to the host, and ends the machine.
pub(super) fn rise(port: &mut Stream) -> io::Result<()> {
    port.say_bytes(AWAKE)?;
    if let Err(fault) = renew(port) {
        // It is lost with the host.
        let _ = port.say(&format!("{fault}\n"));
        return Err(io::Error::other(fault));
    }
    port.say(READY)
}

fn renew(port: &mut Stream) -> Result<(), Fault> {
    let step = "what is new";
    let line = port.hear().map_err(at(step))?;
    let RestoreSetup { seed } = serde_json::from_slice(&line).map_err(at(step))?;
    random::reseed(seed).map_err(at("randomness"))?;
    clock::set(port).map_err(at("the clock"))
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::os::fd::OwnedFd;

    use super::*;

    #[test]
    fn the_init_has_the_very_port_and_a_child_that_ends_shows_none() {
        let (init, child) = UnixStream::pair().unwrap();
        let (port, mut host) = UnixStream::pair().unwrap();
        show(&child, &port).unwrap();
        drop((port, child));
        let mut shown_port = take_restored(&init).unwrap();
        host.write_all(b"a line\n").unwrap();
        assert_eq!(shown_port.hear().unwrap(), b"a line\n");
        assert!(take_restored(&init).is_err(), "it has ended");
    }

    #[test]
    fn what_is_no_morning_is_told_to_the_host_and_nothing_is_set() {
        let (port, mut host) = UnixStream::pair().unwrap();
        let mut port = Stream::new(File::from(OwnedFd::from(port))).unwrap();
        host.write_all(b"{\"seed\":[1]}\n").unwrap();
        assert!(rise(&mut port).is_err());
        drop(port);
        let mut said = Vec::new();
        host.read_to_end(&mut said).unwrap();
        let fault = said.strip_prefix(AWAKE.as_slice()).unwrap();
        assert!(fault.starts_with(b"what is new: "), "{}", String::from_utf8_lossy(fault));
    }
}
