//! What asks a command that follows a run to end.

use std::time::Duration;

use cofferdam_ambient::clock;
use nix::unistd::{Pid, getpid, getppid, getsid};
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::exit::Exit;

/// How often a command looks whether its parent process is there.
const LOOK: Duration = Duration::from_millis(200);

/// Which one came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EndSignal {
    /// Ctrl-C in a terminal.
    Interrupt,
    /// A job runner, `timeout` or a supervisor.
    Terminate,
    /// The terminal, the connection or the program that the command was started from is gone.
    Hangup,
}

impl EndSignal {
    /// The exit of a command that ended for it.
    pub(crate) fn exit(self) -> Exit {
        match self {
            Self::Interrupt => Exit::Interrupted,
            Self::Terminate => Exit::Terminated,
            Self::Hangup => Exit::HungUp,
        }
    }

    /// How to ask once more, where a person can.
    pub(crate) fn again(self) -> &'static str {
        match self {
            Self::Interrupt => "; press Ctrl-C again to leave",
            Self::Terminate | Self::Hangup => "",
        }
    }
}

/// One listener for the whole life of a command: a signal that comes between two waits is not lost.
#[derive(Debug)]
pub(crate) struct EndSignals {
    interrupt: Signal,
    terminate: Signal,
    /// `None` under `nohup`, which says that a hangup ends nothing.
    hangup: Option<Signal>,
    starter: Option<Pid>,
}

impl EndSignals {
    pub(crate) fn listen() -> std::io::Result<Self> {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let hangup = match ignores_hangup(&status) {
            true => None,
            false => Some(signal(SignalKind::hangup())?),
        };
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hangup,
            starter: None,
        })
    }

    /// Takes the end of the parent process for a hangup, too: a job runner often ends a shell and not what that started.
    /// Under `nohup` and as the leader of a session (`setsid`) the command outlives its parent.
    pub(crate) fn of_starter() -> std::io::Result<Self> {
        let signals = Self::listen()?;
        let leads = getsid(None) == Ok(getpid());
        let starter = (signals.hangup.is_some() && !leads).then(getppid);
        // The first process of a namespace has none to lose.
        let starter = starter.filter(|starter| starter.as_raw() > 0);
        Ok(Self { starter, ..signals })
    }

    pub(crate) async fn recv(&mut self) -> EndSignal {
        let hangup = async {
            match &mut self.hangup {
                Some(signal) => drop(signal.recv().await),
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = self.interrupt.recv() => EndSignal::Interrupt,
            _ = self.terminate.recv() => EndSignal::Terminate,
            () = hangup => EndSignal::Hangup,
            () = gone(self.starter) => {
                self.starter = None;
                EndSignal::Hangup
            }
        }
    }
}

/// Until this parent is one no more.
async fn gone(starter: Option<Pid>) {
    match starter {
        Some(starter) => {
            while getppid() == starter {
                clock::sleep(LOOK).await;
            }
        }
        None => std::future::pending().await,
    }
}

/// Whether this process was started with HUP ignored, as `nohup` does; the kernel's first bit.
fn ignores_hangup(status: &str) -> bool {
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nohup_ignores_is_read() {
        assert!(ignores_hangup("Name:\tx\nSigIgn:\t0000000000001001\nSigCgt:\t0"));
        for other in ["SigIgn:\t0000000000001000", "SigIgn:\tnonsense", ""] {
            assert!(!ignores_hangup(other), "{other}");
        }
    }
}
