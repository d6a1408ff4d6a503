//! Which process holds a sandbox, for those that do not: each says so.
//!
//! ```text
//! asked for one that is not here -> on record as running -> another process's: its caller is told to ask that one
//! ```

use std::path::Path;

use cofferdam_contracts::error::ErrorCode;
use cofferdam_contracts::id::LiveId;
use cofferdam_flows::{Error, Result, host_id};
use cofferdam_ledger::live::SandboxWorker;

use crate::live::Live;
use crate::message::Message;
use crate::refusal::{elsewhere, over, refuse};
use serde::{Deserialize, Serialize};

/// Where a sandbox that this process does not show is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ProcessLocation {
    /// Nowhere: it does not run.
    Nowhere,
    /// Here: it begins or ends at this moment.
    Here,
    /// By a process of this host that has ended and is not missed yet.
    Gone,
    /// By another process.
    Elsewhere,
}

/// Whether a process of this host is there. Where others' processes are hidden, so is the first one: then it may be. Pure but for
/// the kernel's list.
fn is_there(pid: i32) -> bool {
    let is_listed = |pid: i32| Path::new(&format!("/proc/{pid}")).exists();
    is_listed(pid) || !is_listed(1)
}

/// Refuses a request to a sandbox that another process holds; for one that is nowhere it is the caller's to say so.
#[derive(Debug, Serialize, Deserialize)]
pub struct RefuseForeign {
    /// Sandbox of any tenant; its row names the worker that runs it.
    pub id: LiveId,
}

impl Message for RefuseForeign {
    type Reply = ();

    async fn answer(self, live: &Live) -> Result<Self::Reply> {
        live.not_elsewhere(&self.id).await
    }
}

impl Live {
    /// Where a sandbox is held that this process does not show.
    pub(crate) async fn holder(&self, id: &LiveId) -> Result<ProcessLocation> {
        let Some(SandboxWorker { executor, host, pid }) = self.0.ledger.live().holder(id).await?
        else {
            return Ok(ProcessLocation::Nowhere);
        };
        let own = self.0.registry.own_tasks().and_then(|own| own.executor());
        Ok(match own {
            Some(own) if *own == executor => ProcessLocation::Here,
            _ if host == host_id() && !is_there(pid) => ProcessLocation::Gone,
            _ => ProcessLocation::Elsewhere,
        })
    }

    /// Refuses a request to a sandbox that another process holds; for one that is nowhere it is the caller's to say so.
    ///
    /// # Errors
    /// Another process holds it.
    pub(crate) async fn not_elsewhere(&self, id: &LiveId) -> Result<()> {
        match self.holder(id).await? {
            ProcessLocation::Elsewhere => Err(elsewhere()),
            ProcessLocation::Nowhere | ProcessLocation::Here | ProcessLocation::Gone => Ok(()),
        }
    }

    /// Why a sandbox that is on record as running is not to be had here.
    pub(crate) async fn not_here_reason(&self, id: &LiveId) -> Result<Error> {
        Ok(match self.holder(id).await? {
            ProcessLocation::Elsewhere => elsewhere(),
            ProcessLocation::Here => {
                let why = "the sandbox begins or ends at this moment; try again";
                refuse(ErrorCode::Unavailable, why)
            }
            ProcessLocation::Gone | ProcessLocation::Nowhere => over(),
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
