//! The start of programs that end with this process, whatever happens to it.
//!
//! The kernel can kill a child with its parent (`PR_SET_PDEATHSIG`), but takes the *thread* that started it for the parent, and
//! threads of a pool come and go. So a thread that never ends starts them. It sees the mounts of the thread that began it:
//! there is one for each mount namespace that asks, and a worker has one.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::mpsc::{Sender, channel};
use std::sync::{LazyLock, Mutex, PoisonError};
use std::thread;

use tokio::process::Command;
use tokio::runtime::Handle;

use crate::host::runtime;

/// A worker that had ended before the kernel was told is not the parent any more.
const IS_OURS: &str = "[ \"$PPID\" = \"$1\" ] || exit 125; shift;";

/// Debian has no system without it. Elsewhere what is started ends when it notices that this process is gone.
static SETPRIV: LazyLock<Option<PathBuf>> = LazyLock::new(|| runtime::search("setpriv"));

/// A shell with this script, of whose arguments the caller adds those from `$1`. [`start`]ed, it is killed with this process,
/// and so is what it becomes.
pub(crate) fn shell(script: &str) -> Command {
    let Some(setpriv) = &*SETPRIV else {
        let mut plain = Command::new("/bin/sh");
        plain.args(["-c", script, "sh"]);
        return plain;
    };
    let mut command = Command::new(setpriv);
    command.args(["--pdeathsig", "KILL", "--", "/bin/sh", "-c", &format!("{IS_OURS} {script}")]);
    command.args(["sh", &std::process::id().to_string()]);
    command
}

type StartOrder = Box<dyn FnOnce() + Send>;

static STARTERS: Mutex<Option<HashMap<PathBuf, Sender<StartOrder>>>> = Mutex::new(None);

/// Has a thread that never ends start a program. Blocks for as long as the start takes.
pub(crate) fn start<T: Send + 'static>(
    program: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let (tell, told) = channel();
    // Whoever starts a child that is awaited needs the reactor of the one who awaits it.
    let reactor = Handle::try_current().ok();
    let order: StartOrder = Box::new(move || {
        let _entered = reactor.as_ref().map(Handle::enter);
        // The one who asked may have been dropped; then the child is, too.
        let _ = tell.send(program());
    });
    starter()?.send(order).map_err(|_| gone())?;
    told.recv().map_err(|_| gone())?
}

fn gone() -> io::Error {
    io::Error::other("the thread that starts programs has ended")
}

/// The thread of our mount namespace.
fn starter() -> io::Result<Sender<StartOrder>> {
    let namespace = fs::read_link("/proc/thread-self/ns/mnt")?;
    let mut starters = STARTERS.lock().unwrap_or_else(PoisonError::into_inner);
    let starters = starters.get_or_insert_default();
    if let Some(known) = starters.get(&namespace) {
        return Ok(known.clone());
    }
    let (sender, orders) = channel::<StartOrder>();
    thread::Builder::new().name("starter".to_owned()).spawn(move || {
        for order in orders {
            order();
        }
    })?;
    starters.insert(namespace, sender.clone());
    Ok(sender)
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn what_it_starts_outlives_the_thread_that_asked() {
        let asked = thread::spawn(|| {
            let mut command = Command::new("setpriv");
            command.args(["--pdeathsig", "KILL", "--", "cat"]);
            command.stdin(Stdio::piped()).stdout(Stdio::piped());
            start(move || command.spawn()).unwrap()
        });
        let child = asked.join().unwrap();
        // Killed, it would have a signal and not this end.
        assert!(child.wait_with_output().unwrap().status.success());
    }

    #[test]
    fn a_program_that_is_not_there_is_the_askers_error() {
        let wrong = start(|| Command::new("/nonexistent/program").spawn()).unwrap_err();
        assert_eq!(wrong.kind(), io::ErrorKind::NotFound);
        assert!(start(|| Ok(7)).is_ok_and(|seven| seven == 7), "it goes on");
    }
}
