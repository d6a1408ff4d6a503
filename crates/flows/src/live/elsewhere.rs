//! Which process holds a sandbox, for those that do not: each says so, and takes nothing on that it could not hold.
//!
//! ```text
//! asked for a life -> a worker of this process? -> queued under it, so that no other one claims it
//!                              \--none: refused before anything is on record
//! asked for one that is not here -> on record as running -> another process's: its caller is told to ask that one
//! ```

use std::path::Path;

use cofferdam_contracts::error::{ErrorCode, Refusal};
use cofferdam_contracts::id::{ExecutorId, LiveId};
use cofferdam_ledger::live::Holder;

use super::refuse;
use crate::error::{Error, Result};
use crate::{Flows, host_id};

/// Where a sandbox that this process does not show is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Whereabouts {
    /// Nowhere: it does not run.
    Nowhere,
    /// Here: it begins or ends at this moment.
    Here,
    /// By a process of this host that has ended and is not missed yet.
    Gone,
    /// By another process.
    Elsewhere,
}

/// What another process holds, this one cannot reach.
pub(super) fn elsewhere() -> Error {
    Refusal::new(
        ErrorCode::WrongServer,
        "the sandbox is held by another process of this installation: ask the server that created it, or that resumed it \
         last",
    )
    .into()
}

/// This process ends.
pub(super) fn stops() -> Error {
    refuse(ErrorCode::Unavailable, "the server stops; try again")
}

/// Whether a process of this host is there. Where others' processes are hidden, so is the first one: then it may be. Pure but for
/// the kernel's list.
fn is_there(pid: i32) -> bool {
    let is_listed = |pid: i32| Path::new(&format!("/proc/{pid}")).exists();
    is_listed(pid) || !is_listed(1)
}

impl Flows {
    /// The worker of this process, under which a life that it is asked for is queued.
    ///
    /// # Errors
    /// There is none, or it stops: this process can hold no sandbox.
    pub(super) fn live_asked(&self) -> Result<ExecutorId> {
        let Some(own) = self.live.own_tasks() else {
            return Err(Refusal::new(
                ErrorCode::WrongServer,
                "this server holds no sandboxes, for no worker runs in it: ask one that was started with `cofferdam up`",
            )
            .into());
        };
        own.executor().cloned().ok_or_else(stops)
    }

    /// Where a sandbox is held that this process does not show.
    pub(super) async fn live_holder(&self, id: &LiveId) -> Result<Whereabouts> {
        let Some(Holder { executor, host, pid }) = self.ledger.live().holder(id).await? else {
            return Ok(Whereabouts::Nowhere);
        };
        let own = self.live.own_tasks().and_then(|own| own.executor());
        Ok(match own {
            Some(own) if *own == executor => Whereabouts::Here,
            _ if host == host_id() && !is_there(pid) => Whereabouts::Gone,
            _ => Whereabouts::Elsewhere,
        })
    }

    /// Refuses a request to a sandbox that another process holds; for one that is nowhere it is the caller's to say so.
    ///
    /// # Errors
    /// Another process holds it.
    pub async fn live_not_elsewhere(&self, id: &LiveId) -> Result<()> {
        match self.live_holder(id).await? {
            Whereabouts::Elsewhere => Err(elsewhere()),
            Whereabouts::Nowhere | Whereabouts::Here | Whereabouts::Gone => Ok(()),
        }
    }

    /// Why a sandbox that is on record as running is not to be had here.
    pub(super) async fn live_unheld(&self, id: &LiveId) -> Result<Error> {
        Ok(match self.live_holder(id).await? {
            Whereabouts::Elsewhere => elsewhere(),
            Whereabouts::Here => {
                let why = "the sandbox begins or ends at this moment; try again";
                refuse(ErrorCode::Unavailable, why)
            }
            Whereabouts::Gone | Whereabouts::Nowhere => super::kept::over(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_has_ended_is_not_there() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        child.wait().unwrap();
        assert!(!is_there(pid));
        assert!(is_there(i32::try_from(std::process::id()).unwrap()));
    }
}
