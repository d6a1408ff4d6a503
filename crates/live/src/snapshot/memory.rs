//! A pause that keeps the memory of a sandbox with its files, so that its processes go on.
//!
//! ```text
//! agent sleeps --refused: it goes on, or its files alone are kept
//!      |
//!      +--> memory -> its processes end -> files -> as every pause
//!             \--its kernel could not write it: its files alone
//! ```
//! A machine hands out its files first, falls asleep, and its memory is kept last.
//!
//! From the sleep on the sandbox does not go on: a pause that fails then ends it, and the record says so.

use std::io;
use std::sync::Arc;

use cofferdam_contracts::error::ErrorCode;
use cofferdam_flows::Result;
use cofferdam_sandbox::{FrozenSandbox, SleepError};

use crate::background::blocking;
use crate::handle::{EndOrder, LiveHandle};
use crate::ids::fresh;
use crate::refusal::{conflict, refuse};
use crate::snapshot::new_file::NewFile;
use crate::snapshot::resume_spec::ResumeSpec;
use crate::snapshot::snapshots::Snapshots;
use crate::snapshot::store::SnapshotFile;

/// Whether a pause stores memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MemoryOption {
    /// Only files are stored; the processes end and their memory is lost.
    No,
    /// Where the class can; what cannot be kept refuses the pause.
    Asked,
    /// The same, but then its files alone are kept.
    IfPossible,
}

impl MemoryOption {
    /// What a caller asks for: by default its memory, where the class can.
    pub(crate) fn asked(memory: Option<bool>) -> Self {
        if memory == Some(false) { Self::No } else { Self::Asked }
    }
}

impl Snapshots {
    /// Keeps memory and files of a sandbox, whose processes end. `None`: its files alone are to be kept, and nothing has
    /// happened to it.
    pub(crate) async fn snapshot_memory(
        &self,
        held: &Arc<LiveHandle>,
        memory: MemoryOption,
    ) -> Result<Option<(FrozenSandbox, SnapshotFile)>> {
        let Some(snapshotter) =
            held.snapshotter.as_ref().ok().filter(|snapshotter| snapshotter.can_snapshot_memory())
        else {
            return Ok(None);
        };
        if memory == MemoryOption::No {
            return Ok(None);
        }
        let room = self.room(&held.facts.tenant).await?;
        let (store, id) = (Arc::clone(&self.live.0.store), fresh()?);
        let unkept = |why: String| match memory {
            MemoryOption::Asked => Err(conflict(format!(
                "the memory of the sandbox cannot be kept: {why}; pause it with its files alone (`memory: false`), or try \
                 again"
            ))),
            _ => {
                tracing::info!(sandbox = %held.facts.id, why, "a pause keeps files alone");
                Ok(None)
            }
        };
        if !snapshotter.fits(store.dir()) {
            return unkept("the disk of the snapshots has no room for it".to_owned());
        }
        // Once its processes have ended it is too late to find that there is none.
        if snapshotter.most() > room.most() {
            return unkept(room.fault(&io::ErrorKind::FileTooLarge.into()).refusal().message);
        }
        snapshotter.in_place().map_err(|why| room.fault(&io::Error::other(why)))?;
        let sleeping = match snapshotter.sleep().await {
            Ok(sleeping) => sleeping,
            Err(SleepError::Refused(why)) => return unkept(why),
            Err(error) => {
                held.end(EndOrder::Unkept);
                return Err(refuse(ErrorCode::Unavailable, error.to_string()));
            }
        };
        if sleeping.is_asleep() {
            held.fell_asleep();
        }
        let (keeping, memory_last) = (Arc::clone(held), snapshotter.is_memory_last());
        let kept = blocking(move || {
            let resume_spec = ResumeSpec { memory: true, memory_last, ..keeping.itself() };
            let (goes_on, falls_asleep) = (|| keeping.goes_on(), || keeping.fell_asleep());
            let new = NewFile { store: &store, id, room: &room };
            new.keep_memory(&resume_spec, sleeping, &goes_on, &falls_asleep)
        });
        match kept.await {
            Ok((still, kept, fault)) => {
                if let Some(why) = fault {
                    tracing::warn!(sandbox = %held.facts.id, %why, "a kernel did not write its memory; files alone are kept");
                }
                Ok(Some((still, kept)))
            }
            Err(why) => {
                if held.is_asleep() {
                    held.end(EndOrder::Unkept);
                }
                Err(refuse(ErrorCode::Unavailable, why.to_string()))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_keeps_memory_unless_its_caller_says_no() {
        assert_eq!(MemoryOption::asked(None), MemoryOption::Asked);
        assert_eq!(MemoryOption::asked(Some(true)), MemoryOption::Asked);
        assert_eq!(MemoryOption::asked(Some(false)), MemoryOption::No);
    }
}
