//! The agent's side of a jail: answers every watched call, and keeps what it saw.

use std::fs;
use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::FileExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cofferdam_guest::jail::{RefusedKind, Seen};
use libc::seccomp_notif;
use nix::cmsg_space;
use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::Notify;

use super::calls::{self, Does};
use super::notify;
use super::rules::Rules;
use crate::agent::clock::now_ms;

/// The longest path of a call: the kernel's own bound.
const PATH_BYTES: usize = 4_096;
/// A page: what lies beyond its end may not be mapped.
const PAGE: u64 = 4_096;
/// Bytes of a reason why there is no jail.
const REASON_BYTES: usize = 1_024;
/// A subject as it is listed.
const SUBJECT_CHARS: usize = 512;

/// What is being watched.
#[derive(Debug, Clone)]
pub struct Watch {
    seen: Arc<Mutex<Seen>>,
    stop: Arc<Notify>,
}

impl Watch {
    /// Watches a command that is about to be started in its jail, until every process of it is gone.
    pub fn start(socket: UnixStream, rules: Rules, max_execs: Option<u64>) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        let socket = readable(socket)?;
        let watch = Self { seen: Arc::default(), stop: Arc::default() };
        let watching = watch.clone();
        tokio::spawn(async move {
            let Ok(first) = socket.async_io(Interest::READABLE, receive).await else { return };
            match first {
                First::Listener(listener) => watching.run(listener, &rules, max_execs).await,
                First::Broken(reason) => watching.lock().broken = Some(reason),
                First::Nothing => {}
            }
        });
        Ok(watch)
    }

    /// Resolves once a limit ends the command.
    pub async fn stopped(&self) {
        self.stop.notified().await;
    }

    /// Everything so far.
    pub fn seen(&self) -> Seen {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn run(&self, listener: OwnedFd, rules: &Rules, max_execs: Option<u64>) {
        let Ok(listener) = readable(listener) else { return };
        let mut own = true;
        loop {
            let Ok(mut ready) = listener.readable().await else { return };
            // Nobody is left who could call.
            if ready.ready().is_read_closed() {
                return;
            }
            // Asked before each: receiving waits, and the agent has one thread.
            while waiting(listener.get_ref()) {
                match notify::receive(listener.get_ref().as_fd()) {
                    Ok(call) => self.answer(listener.get_ref(), &call, rules, &mut own, max_execs),
                    // Gone between the knock and the door, or interrupted.
                    Err(error) if is_passing(&error) => {}
                    Err(_) => return,
                }
            }
            ready.clear_ready();
        }
    }

    fn answer(
        &self,
        listener: &OwnedFd,
        call: &seccomp_notif,
        rules: &Rules,
        own: &mut bool,
        max_execs: Option<u64>,
    ) {
        let errno = self.judge(call, rules, own);
        let mut seen = self.lock();
        if max_execs.is_some_and(|most| seen.execs > most)
            && !std::mem::replace(&mut seen.stopped, true)
        {
            self.stop.notify_one();
        }
        drop(seen);
        // A caller that is gone needs no word.
        let _ = notify::answer(listener.as_fd(), call.id, errno);
    }

    /// What is answered: an error for sockets, the rules' own word for everything else.
    fn judge(&self, call: &seccomp_notif, rules: &Rules, own: &mut bool) -> Option<i32> {
        let number = i64::from(call.data.nr);
        let now = now_ms();
        if number == libc::SYS_socket {
            let family = call.data.args.first().copied().unwrap_or(0);
            let inet6 = u64::try_from(libc::AF_INET6).is_ok_and(|v6| v6 == family);
            let subject = if inet6 { "AF_INET6" } else { "AF_INET" };
            self.lock().refuse(RefusedKind::Socket, subject.to_owned(), now);
            return Some(libc::EACCES);
        }
        let known = calls::of(number)?;
        let path = path_of(call, known.path, known.dir)?;
        if known.does == Does::Exec && rules.is_loader(&path) {
            self.lock().refuse(RefusedKind::Exec, shown(&path), now);
            return Some(libc::EACCES);
        }
        if known.does == Does::Exec {
            match rules.may_execute(&path) {
                Some(true) if std::mem::take(own) => {}
                Some(true) => {
                    let name = path.file_name().unwrap_or(path.as_os_str());
                    self.lock().execute(shown(Path::new(name)));
                }
                Some(false) => self.lock().refuse(RefusedKind::Exec, shown(&path), now),
                None => {}
            }
        } else if rules.may_write(&path) == Some(false) {
            self.lock().refuse(RefusedKind::Write, shown(&path), now);
        }
        None
    }
}

/// Whether a call waits now.
fn waiting(listener: &OwnedFd) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    let mut fds = [PollFd::new(listener, PollFlags::IN)];
    matches!(poll(&mut fds, Some(&now)), Ok(1))
        && fds.first().is_some_and(|fd| fd.revents().contains(PollFlags::IN))
}

fn is_passing(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOENT | libc::EINTR))
}

/// A descriptor that tells when it can be read.
#[expect(
    deprecated,
    reason = "its successor is unsafe; what is handed over here owns its descriptor"
)]
fn readable<T: std::os::fd::AsRawFd>(owned: T) -> io::Result<AsyncFd<T>> {
    AsyncFd::with_interest(owned, Interest::READABLE)
}

enum First {
    Listener(OwnedFd),
    Broken(String),
    Nothing,
}

fn receive(socket: &UnixStream) -> io::Result<First> {
    let mut text = [0; REASON_BYTES];
    let mut parts = [IoSliceMut::new(&mut text)];
    let mut space = cmsg_space!([i32; 1]);
    let flags = MsgFlags::MSG_CMSG_CLOEXEC;
    let message = recvmsg::<()>(socket.as_raw_fd(), &mut parts, Some(&mut space), flags)?;
    let count = message.bytes;
    for extra in message.cmsgs()? {
        if let ControlMessageOwned::ScmRights(fds) = extra
            && let Some(fd) = fds.first()
        {
            #[expect(unsafe_code, reason = "the kernel has just made this descriptor for us")]
            // SAFETY: recvmsg gave it to this process, and nothing else holds it.
            let listener = unsafe { std::os::fd::FromRawFd::from_raw_fd(*fd) };
            return Ok(First::Listener(listener));
        }
    }
    Ok(match count {
        0 => First::Nothing,
        _ => First::Broken(
            String::from_utf8_lossy(text.get(..count).unwrap_or_default()).into_owned(),
        ),
    })
}

/// The path that a call names, absolute. `None`: it cannot be read.
fn path_of(call: &seccomp_notif, path: usize, dir: Option<usize>) -> Option<PathBuf> {
    let pid = call.pid;
    let text = string(pid, *call.data.args.get(path)?)?;
    let given = PathBuf::from(std::ffi::OsStr::from_bytes(&text));
    // A process's own links are its own, not ours.
    if let Ok(rest) = given.strip_prefix("/proc/self") {
        return Some(Path::new("/proc").join(pid.to_string()).join(rest));
    }
    if given.is_absolute() {
        return Some(given);
    }
    let number = dir.and_then(|dir| call.data.args.get(dir)).copied();
    // A descriptor is an int: the upper half of the register means nothing.
    let number = number.map(|n| (n & 0xffff_ffff).cast_signed());
    let cwd = u32::try_from(i64::from(libc::AT_FDCWD) & 0xffff_ffff).ok().map(i64::from);
    let base = match number {
        Some(number) if Some(number) != cwd => {
            fs::read_link(format!("/proc/{pid}/fd/{number}")).ok()?
        }
        _ => fs::read_link(format!("/proc/{pid}/cwd")).ok()?,
    };
    Some(if given.as_os_str().is_empty() { base } else { base.join(given) })
}

/// A string of another process, page by page.
fn string(pid: u32, at: u64) -> Option<Vec<u8>> {
    let memory = fs::File::open(format!("/proc/{pid}/mem")).ok()?;
    let mut found = Vec::new();
    while found.len() < PATH_BYTES {
        let from = at.checked_add(u64::try_from(found.len()).ok()?)?;
        let room = usize::try_from(PAGE - from % PAGE).ok()?;
        let mut piece = vec![0; room.min(PATH_BYTES)];
        let read = memory.read_at(&mut piece, from).ok()?;
        let piece = piece.get(..read).filter(|piece| !piece.is_empty())?;
        if let Some(end) = piece.iter().position(|byte| *byte == 0) {
            found.extend_from_slice(piece.get(..end)?);
            return Some(found);
        }
        found.extend_from_slice(piece);
    }
    None
}

fn shown(path: &Path) -> String {
    let text = path.to_string_lossy();
    text.chars().filter(|c| !c.is_control()).take(SUBJECT_CHARS).collect()
}
