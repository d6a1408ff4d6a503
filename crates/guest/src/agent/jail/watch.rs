//! The agent's side of a jail: answers every watched call, and keeps what it saw.

use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cofferdam_guest::jail::{JailRefusalKind, JailReport};
use libc::seccomp_notif;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use tokio::io::Interest;
use tokio::net::UnixStream as PollStream;
use tokio::sync::Notify;

use super::caller::Caller;
use super::calls::{self, Call, CallEffect};
use super::notify;
use super::rules::Rules;
use crate::agent::clock::now_ms;
use crate::agent::poll_fd::polled;

/// Bytes of a reason why there is no jail.
const REASON_BYTES: usize = 1_024;
/// A subject as it is listed.
const SUBJECT_CHARS: usize = 512;

/// What is being watched.
#[derive(Debug, Clone)]
pub struct Watch {
    seen: Arc<Mutex<JailReport>>,
    stop: Arc<Notify>,
}

impl Watch {
    /// Watches a command that is about to be started in its jail, until every process of it is gone.
    pub fn start(socket: UnixStream, rules: Rules, max_execs: Option<u64>) -> io::Result<Self> {
        let socket = polled(socket.into())?;
        let watch = Self { seen: Arc::default(), stop: Arc::default() };
        let watching = watch.clone();
        tokio::spawn(async move {
            let Ok(first) = socket.async_io(Interest::READABLE, || receive(&socket)).await else {
                return;
            };
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
    pub fn seen(&self) -> JailReport {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, JailReport> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn run(&self, listener: OwnedFd, rules: &Rules, max_execs: Option<u64>) {
        let Ok(listener) = polled(listener) else { return };
        let mut own = true;
        loop {
            let Ok(ready) = listener.ready(Interest::READABLE).await else { return };
            // Nobody is left who could call.
            if ready.is_read_closed() {
                return;
            }
            // Asked before each: receiving waits, and the agent has one thread.
            while waiting(&listener) {
                match notify::receive(listener.as_fd()) {
                    Ok(call) => self.answer(&listener, &call, rules, &mut own, max_execs),
                    // Gone between the knock and the door, or interrupted.
                    Err(error) if is_passing(&error) => {}
                    Err(_) => return,
                }
            }
            // Nobody waits: the next notice is wanted.
            let _: io::Result<()> =
                listener.try_io(Interest::READABLE, || Err(io::ErrorKind::WouldBlock.into()));
        }
    }

    fn answer(
        &self,
        listener: &PollStream,
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
            self.lock().refuse(JailRefusalKind::Socket, subject.to_owned(), now);
            return Some(libc::EACCES);
        }
        if number == libc::SYS_mmap {
            return self.judge_mapping(call, rules);
        }
        let known = calls::of(number)?;
        let path = match path_of(call, known) {
            Ok(path) => path,
            // The kernel says that to the caller, too, and a caller that is gone hears nothing.
            Err(error) if is_absent(&error) => return None,
            Err(_) if known.does == CallEffect::Exec && rules.holds_tools() => {
                self.lock().refuse(JailRefusalKind::Exec, UNREADABLE.to_owned(), now);
                return Some(libc::EACCES);
            }
            Err(_) => return None,
        };
        if known.does == CallEffect::Exec && rules.is_loader(&path) {
            self.lock().refuse(JailRefusalKind::Exec, shown(&path), now);
            return Some(libc::EACCES);
        }
        if known.does == CallEffect::Exec {
            match rules.may_execute(&path) {
                Some(true) if std::mem::take(own) => {}
                Some(true) => {
                    let name = path.file_name().unwrap_or(path.as_os_str());
                    self.lock().execute(shown(Path::new(name)));
                }
                Some(false) => self.lock().refuse(JailRefusalKind::Exec, shown(&path), now),
                None => {}
            }
        } else if rules.may_write(&path) == Some(false) {
            self.lock().refuse(JailRefusalKind::Write, shown(&path), now);
        }
        None
    }

    /// Code of a file is mapped: refused to a loader that is itself what the task executes, by whatever name that
    /// became so, and to a task that cannot be looked at.
    fn judge_mapping(&self, call: &seccomp_notif, rules: &Rules) -> Option<i32> {
        let caller = match Caller::of(call.pid) {
            Ok(caller) => caller,
            Err(error) if is_absent(&error) => return None,
            Err(_) => return Some(libc::EACCES),
        };
        let subject = match caller.program() {
            Ok(file) if !rules.is_loader_file(file) => return None,
            Ok(_) => shown(&caller.program_name()),
            Err(error) if is_absent(&error) => return None,
            Err(_) => UNREADABLE.to_owned(),
        };
        self.lock().refuse(JailRefusalKind::Exec, subject, now_ms());
        Some(libc::EACCES)
    }
}

/// What is listed of a program whose name or file the agent could not look at.
const UNREADABLE: &str = "a program that cannot be looked at";

/// What a call names, so that the agent finds it too.
fn path_of(call: &seccomp_notif, known: Call) -> io::Result<PathBuf> {
    let argument = |index: usize| call.data.args.get(index).copied();
    let at = argument(known.path).ok_or(io::ErrorKind::InvalidInput)?;
    Caller::of(call.pid)?.named(at, known.dir.and_then(argument))
}

fn is_absent(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::ENOENT | libc::ESRCH | libc::ENOTDIR | libc::ELOOP | libc::ENAMETOOLONG)
    )
}

/// Whether a call waits now.
fn waiting(listener: &PollStream) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    let mut fds = [PollFd::new(listener, PollFlags::IN)];
    matches!(poll(&mut fds, Some(&now)), Ok(1))
        && fds.first().is_some_and(|fd| fd.revents().contains(PollFlags::IN))
}

fn is_passing(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOENT | libc::EINTR))
}

enum First {
    Listener(OwnedFd),
    Broken(String),
    Nothing,
}

fn receive(socket: &PollStream) -> io::Result<First> {
    let mut text = [0; REASON_BYTES];
    let mut parts = [IoSliceMut::new(&mut text)];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut extra = RecvAncillaryBuffer::new(&mut space);
    let count = recvmsg(socket, &mut parts, &mut extra, RecvFlags::CMSG_CLOEXEC)?.bytes;
    let listener = extra.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    });
    Ok(match (listener, count) {
        (Some(listener), _) => First::Listener(listener),
        (None, 0) => First::Nothing,
        (None, _) => First::Broken(
            String::from_utf8_lossy(text.get(..count).unwrap_or_default()).into_owned(),
        ),
    })
}

fn shown(path: &Path) -> String {
    let text = path.to_string_lossy();
    text.chars().filter(|c| !c.is_control()).take(SUBJECT_CHARS).collect()
}
