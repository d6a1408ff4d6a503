//! The memory of a sandbox, as its kernel writes it.
//!
//! ```text
//! us --connect--> the kernel's control socket --{method: Checkpoint} + a pipe--> it stops every task, writes, says how it
//!   <--------------------------- pipe ---------------------------------------     went, and ends
//! ```
//! `runsc checkpoint` asks the same by a file that it must be able to create, whose pages would count as the sandbox's
//! memory; a pipe costs nothing, and what comes through it is sealed as it comes. A runsc that does not know the method
//! refuses it, and the sandbox goes on. The kernel may have been taken over: what it writes is bounded in bytes and
//! time, and is read by nobody but the next kernel of this same sandbox.

use std::io::{self, IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::time::Duration;

use nix::sys::socket::{getsockopt, sockopt};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use serde::Deserialize;

use crate::host::memory_pipe::{self, PipeBounds};
use crate::host::traces::Traces;

/// What a silent kernel is given: it stops every task first, one of which may be in a long call of the host.
const PATIENCE: Duration = Duration::from_secs(10);
/// Of the answer: a few words.
const MAX_ANSWER_BYTES: usize = 64 * 1024;
const REQUEST: &[u8] = br#"{"method":"containerManager.Checkpoint","arg":{}}"#;

/// How it went, as the kernel says.
#[derive(Debug, Deserialize)]
struct CheckpointEnd {
    success: bool,
    #[serde(default)]
    err: String,
}

/// Has the kernel write itself to `out`, in at most so many bytes. `members`: the processes of its sandbox.
pub(super) fn store(
    traces: &Traces,
    members: &[u32],
    out: &mut dyn Write,
    most: u64,
) -> io::Result<()> {
    let control = connect(traces)?;
    // A name of this kind is anybody's to take.
    let peer = u32::try_from(getsockopt(&control, sockopt::PeerCredentials)?.pid()).ok();
    if !peer.is_some_and(|pid| members.contains(&pid)) {
        return Err(io::Error::other("the kernel's control socket is not its own"));
    }
    control.set_read_timeout(Some(PATIENCE))?;
    let (ours, theirs) = memory_pipe::pipe()?;
    ask(&control, theirs.into())?;
    let most = PipeBounds { bytes: most, silence: PATIENCE, all: Duration::MAX };
    memory_pipe::carry(ours, &control, out, most, &|| true)?;
    let mut said = Vec::new();
    let mut piece = [0; 4096];
    loop {
        let answer: Result<CheckpointEnd, _> = serde_json::from_slice(&said);
        match answer {
            Ok(CheckpointEnd { success: true, .. }) => return Ok(()),
            Ok(CheckpointEnd { err, .. }) => return Err(io::Error::other(format!("runsc: {err}"))),
            Err(_) => {}
        }
        match (&control).read(&mut piece)? {
            count @ 1.. if said.len() < MAX_ANSWER_BYTES => {
                said.extend_from_slice(piece.get(..count).unwrap_or_default());
            }
            // It ends itself at once where it fails.
            _ => {
                return Err(io::Error::other(
                    "the sandbox's kernel ended while it wrote its memory",
                ));
            }
        }
    }
}

/// A newer runsc has its socket in the directory of its state.
fn connect(traces: &Traces) -> io::Result<UnixStream> {
    let id = traces.id.as_str();
    let in_state = traces.runtime_state.join(format!("runsc-{id}.sock"));
    match UnixStream::connect(in_state) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            UnixStream::connect_addr(&address(id)?)
        }
        done => done,
    }
}

fn address(id: &str) -> io::Result<SocketAddr> {
    // The name has its terminating zero in it.
    SocketAddr::from_abstract_name(format!("runsc-sandbox.{id}\0"))
}

fn ask(control: &UnixStream, pipe: OwnedFd) -> io::Result<()> {
    let fds = [pipe.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut beside = SendAncillaryBuffer::new(&mut space);
    if !beside.push(SendAncillaryMessage::ScmRights(&fds)) {
        return Err(io::ErrorKind::OutOfMemory.into());
    }
    let sent = sendmsg(control, &[IoSlice::new(REQUEST)], &mut beside, SendFlags::NOSIGNAL)?;
    match sent == REQUEST.len() {
        true => Ok(()),
        false => Err(io::ErrorKind::WriteZero.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;
    use std::path::Path;
    use std::sync::atomic::{AtomicU32, Ordering};

    use cofferdam_contracts::id::SandboxId;

    use crate::host::traces::locate;

    use super::*;

    /// Stands in for a kernel: takes one request and does what it is told.
    fn kernel(name: &str, act: impl FnOnce(UnixStream, OwnedFd) + Send + 'static) {
        let listener = UnixListener::bind_addr(&address(name).unwrap()).unwrap();
        std::thread::spawn(move || {
            use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
            let (stream, _) = listener.accept().unwrap();
            let (mut bytes, mut space) =
                ([0; 4096], [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))]);
            let mut beside = RecvAncillaryBuffer::new(&mut space);
            let mut into = [io::IoSliceMut::new(&mut bytes)];
            let got = recvmsg(&stream, &mut into, &mut beside, RecvFlags::empty()).unwrap();
            assert_eq!(&bytes[..got.bytes], REQUEST);
            let fds = beside.drain().find_map(|message| match message {
                RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
                _ => None,
            });
            act(stream, fds.unwrap());
        });
    }

    fn stored(act: impl FnOnce(UnixStream, OwnedFd) + Send + 'static) -> io::Result<Vec<u8>> {
        static CALLS: AtomicU32 = AtomicU32::new(0);
        let call = CALLS.fetch_add(1, Ordering::Relaxed);
        let id = SandboxId::parse(&format!("sb{:012x}{call:08x}", std::process::id())).unwrap();
        let traces = locate(Path::new("/nowhere"), &id);
        kernel(traces.id.as_str(), act);
        let mut out = Vec::new();
        let own = [std::process::id()];
        store(&traces, &own, &mut out, 1_000).map(|()| out)
    }

    #[test]
    fn what_a_kernel_writes_is_kept_where_it_says_so_within_its_bound() {
        let write = |pipe: OwnedFd, count: usize| {
            // Who reads may have given up.
            let _ = std::fs::File::from(pipe).write_all(&vec![7; count]);
        };
        let good = stored(move |mut control, pipe| {
            write(pipe, 1_000);
            control.write_all(br#"{"success":true,"err":"","result":{}}"#).unwrap();
        });
        assert_eq!(good.unwrap(), vec![7; 1_000]);
        let large = stored(move |_control, pipe| write(pipe, 1_001)).unwrap_err();
        assert_eq!(large.kind(), io::ErrorKind::FileTooLarge);
        let ended = stored(move |_control, pipe| write(pipe, 10)).unwrap_err();
        assert!(ended.to_string().contains("ended while it wrote"), "{ended}");
        let refused = stored(move |mut control, _pipe| {
            control.write_all(br#"{"success":false,"err":"unknown method"}"#).unwrap();
        });
        assert!(refused.unwrap_err().to_string().contains("unknown method"));
    }

    #[test]
    fn a_socket_of_another_process_is_asked_nothing() {
        let id = SandboxId::parse(&format!("sb{:012x}ffffffff", std::process::id())).unwrap();
        let traces = locate(Path::new("/nowhere"), &id);
        let _other = UnixListener::bind_addr(&address(id.as_str()).unwrap()).unwrap();
        let refused = store(&traces, &[1], &mut Vec::new(), 1_000).unwrap_err();
        assert!(refused.to_string().contains("not its own"), "{refused}");
    }
}
