//! A command in its jail.
//!
//! ```text
//! agent --spawn--> agent `jail`: Landlock rules, filter --listener over a socket--> agent
//!                    --exec--> command ... each watched call waits for the agent's word
//! ```
//! **The rules decide, in the kernel; the agent's word lets every watched call go on to meet them,
//! but for sockets, which it refuses itself by their number, and the program loader.** What the agent reads of a call may be
//! changed under its eyes by another thread: then a count is wrong and no rule is. A loader that was started by a name that
//! changed is refused when it maps its program: what a task executes is then no text of its own any more.

mod caller;
mod calls;
mod filter;
mod notify;
mod rules;
mod watch;

use std::ffi::OsString;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, AsRawFd as _, FromRawFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};

use cofferdam_guest::jail::Jail;
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

pub use rules::Rules;
pub use watch::Watch;

/// The agent's own program, whatever the task put in its place.
const SELF: &str = "/proc/self/exe";
/// The argument that makes the agent the first moment of a jail; then the number of its socket, the
/// rules, program, name, arguments.
pub const JAIL: &str = "jail";
/// What the socket carries beside the listener.
const READY: u8 = b'.';
/// Bytes of the reason why there is no jail.
const MAX_REASON: usize = 1_024;

/// A jail around a prepared command.
pub struct JailCommand {
    /// What is to be started in its place.
    pub command: Command,
    /// Our end of the socket pair.
    pub socket: UnixStream,
    /// Theirs: to be dropped once it is started.
    pub theirs: UnixStream,
    /// What is enforced.
    pub rules: Rules,
}

/// Puts a prepared command into a jail.
pub fn around(command: &Command, jail: &Jail, path: &str) -> io::Result<JailCommand> {
    let rules = Rules::of(jail, command.get_program().as_ref(), path)?;
    let text = serde_json::to_string(&rules)?;
    let (socket, theirs) = UnixStream::pair()?;
    // Its own number survives the exec; nothing else is started before it is closed again.
    fcntl_setfd(&theirs, FdFlags::empty())?;
    let mut jailed = Command::new(SELF);
    jailed
        .arg(JAIL)
        .arg(theirs.as_raw_fd().to_string())
        .arg(text)
        .arg(command.get_program())
        .args(command.get_args())
        .env_clear()
        .envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))))
        .process_group(0)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    if let Some(dir) = command.get_current_dir() {
        jailed.current_dir(dir);
    }
    Ok(JailCommand { command: jailed, socket, theirs, rules })
}

/// The first moment of a jail. Returns only if it fails.
pub fn enter(mut args: impl Iterator<Item = OsString>) -> io::Error {
    let (Some(number), Some(rules), Some(program)) = (args.next(), args.next(), args.next()) else {
        return io::Error::new(io::ErrorKind::InvalidInput, "a jail needs rules and a program");
    };
    let Some(socket) = inherited(&number) else {
        return io::Error::new(io::ErrorKind::InvalidInput, "a jail needs its socket");
    };
    match lock(&rules, &socket) {
        Ok(()) => {
            drop(socket);
            Command::new(program).args(args).exec()
        }
        Err(error) => {
            let reason: String = error.to_string().chars().take(MAX_REASON / 4).collect();
            let _ = io::Write::write_all(&mut &socket, reason.as_bytes());
            error
        }
    }
}

fn lock(rules: &OsString, socket: &UnixStream) -> io::Result<()> {
    let rules: Rules = serde_json::from_slice(rules.as_encoded_bytes())?;
    rustix::thread::set_no_new_privs(true)?;
    rules.enforce()?;
    let listener = notify::listen(&filter::of(&rules)?)?;
    let fds = [listener.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut extra = SendAncillaryBuffer::new(&mut space);
    if !extra.push(SendAncillaryMessage::ScmRights(&fds)) {
        return Err(io::ErrorKind::OutOfMemory.into());
    }
    sendmsg(socket, &[IoSlice::new(&[READY])], &mut extra, SendFlags::empty())?;
    Ok(())
}

/// The socket that this process was started with.
fn inherited(number: &OsString) -> Option<UnixStream> {
    let number: i32 = number.to_str()?.parse().ok()?;
    if number < 3 {
        return None;
    }
    #[expect(unsafe_code, reason = "the number is ours: `around` opened it for this process alone")]
    // SAFETY: nothing else in this process knows the descriptor, which was inherited for this use.
    let socket = unsafe { OwnedFd::from_raw_fd(number) };
    fcntl_setfd(&socket, FdFlags::CLOEXEC).ok()?;
    Some(UnixStream::from(socket))
}
