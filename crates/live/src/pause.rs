//! The end of a life whose files are kept.
//!
//! ```text
//! stop -> layer held by its sealer, room for its file -> snapshot and pause on record -> processes killed -> wiped but for the layer
//! ```
//! A pause is refused, in this order, and the sandbox goes on:
//!
//! | why | where |
//! |---|---|
//! | it starts, is paused, is over, or another worker has it | `view`: `Live::handle` |
//! | this worker has no key to seal with | `flows::secrets`: `vault` |
//! | it was paused or ended in the meantime | [`Pause::done`] |
//! | memory is asked for, and its class or its agent cannot | `snapshot::memory` |
//! | its class keeps no files | [`Pause::stand`], by the handle's snapshotter |
//! | the tenant's quota, or the disk | `snapshot::space`, `snapshot::allowance` |
//! | its life is over, or the quota of rows | `ledger::snapshots`, and the trigger of its table |
//!
//! Once its agent sleeps there is no way back: a pause that fails then ends the sandbox ([`EndOrder::Unkept`]).

use std::sync::Arc;

use cofferdam_contracts::error::ErrorCode;
use cofferdam_contracts::id::LiveId;
use cofferdam_contracts::live::{LiveState, LiveView};
use cofferdam_contracts::snapshot::SnapshotKind;
use cofferdam_flows::{Error, Result};
use cofferdam_ledger::audit::Audit;
use cofferdam_ledger::failpoint::fail_point;
use cofferdam_ledger::keys::Principal;
use cofferdam_ledger::snapshots::SnapshotForm;
use cofferdam_ledger::stored_files::StoredFileTable;
use cofferdam_sandbox::FrozenSandbox;

use crate::background::{blocking, detached};
use crate::handle::{EndOrder, LiveHandle, PauseLayer};
use crate::ids::fresh;
use crate::layer::layers::Layers;
use crate::layer::paused_layer::PausedLayer;
use crate::live::Live;
use crate::message::Message;
use crate::patience::moved;
use crate::refusal::{conflict, over, refuse, unverified};
use crate::snapshot::capture::{audit, synced};
use crate::snapshot::memory::MemoryOption;
use crate::snapshot::new_file::NewFile;
use crate::snapshot::snapshots::Snapshots;
use crate::snapshot::store::SnapshotFile;
use serde::{Deserialize, Serialize};

/// A sandbox that stands still for its pause: what there is of its files.
enum PauseFiles {
    Plain(Box<PausedLayer>),
    Sealed(SnapshotFile),
}

/// Pauses a running sandbox, and answers once its wipe is on record.
#[derive(Debug, Serialize, Deserialize)]
pub struct PauseSandbox {
    /// Caller; the sandbox must belong to the tenant of this key.
    pub who: Principal,
    /// Sandbox that must run in this process.
    pub id: LiveId,
    /// Whether its processes go on with a resume; by default they do where its class can.
    pub memory: Option<bool>,
}

impl Message for PauseSandbox {
    type Reply = LiveView;

    async fn answer(self, live: &Live) -> Result<Self::Reply> {
        live.pause(&self.who, &self.id, self.memory).await
    }
}

impl Live {
    /// Pauses a running sandbox: keeps its files, ends its processes and answers once its wipe is on record. With `memory`
    /// its processes go on with a resume; by default they do where its class can.
    ///
    /// # Errors
    /// It does not run here, is paused already, its class cannot be paused, or its files cannot be kept. It goes on then, unless its agent sleeps already.
    async fn pause(&self, who: &Principal, id: &LiveId, memory: Option<bool>) -> Result<LiveView> {
        let mut wakes = self.0.wakes.subscribe();
        let held = self.handle(who, id).await?;
        let run = held.facts.run.clone();
        let (live, asker) = (self.clone(), who.clone());
        let memory = MemoryOption::asked(memory);
        detached(async move { live.pause_live(&asker, &held, "", memory).await }).await?;
        let wiped = tokio::time::timeout(crate::patience::KILL_PATIENCE, async {
            loop {
                let view = self.view(who, id).await?;
                // Somebody may have resumed it meanwhile.
                if view.wiped || view.run_id != run {
                    return Ok::<_, Error>(view);
                }
                moved(&mut wakes, &run).await;
            }
        });
        wiped.await.unwrap_or_else(|_| Err(unverified()))
    }

    /// Keeps a sandbox's files, records it as paused and orders its end.
    pub(crate) async fn pause_live(
        &self,
        who: &Principal,
        held: &Arc<LiveHandle>,
        reason: &str,
        memory: MemoryOption,
    ) -> Result<()> {
        Pause { live: self, who, held, reason }.done(memory).await
    }
}

struct Pause<'a> {
    live: &'a Live,
    who: &'a Principal,
    held: &'a Arc<LiveHandle>,
    /// Why, for the record; empty: its tenant asked for it.
    reason: &'a str,
}

impl Pause<'_> {
    async fn done(&self, memory: MemoryOption) -> Result<()> {
        let (live, held) = (self.live, self.held);
        // Before anything is stopped: without it nothing can be kept.
        live.0.flows.secrets.vault()?;
        let _turn = held.turn.lock().await;
        let _keeping = held.keeping.lock().await;
        if !held.goes_on() {
            return Err(match live.view(self.who, &held.facts.id).await?.state {
                LiveState::Paused => conflict("the sandbox is paused already"),
                _ => over(),
            });
        }
        let (still, stood) = match Snapshots::of(live).snapshot_memory(held, memory).await? {
            Some((still, kept)) => (still, PauseFiles::Sealed(kept)),
            None => self.stand().await?,
        };
        let paused = match stood {
            PauseFiles::Plain(plain) => self.plain(still, *plain).await,
            PauseFiles::Sealed(kept) => self.sealed(still, kept).await,
        };
        if paused.is_err() && held.is_asleep() {
            // There is nothing left of it that could go on.
            held.end(EndOrder::Unkept);
        }
        paused
    }

    /// Stops a sandbox and has its layer held by its sealer; one that does not lie in memory is written.
    async fn stand(&self) -> Result<(FrozenSandbox, PauseFiles)> {
        let (live, held) = (self.live, self.held);
        let snapshotter = held.snapshotter.clone();
        let snapshotter =
            snapshotter.map_err(|why| refuse(ErrorCode::PolicyViolation, why.to_string()))?;
        let (store, id, of) = (Arc::clone(&live.0.store), fresh()?, Arc::clone(held));
        // Both at once: where there is no room, the sandbox was stopped for a moment and goes on.
        let standing =
            blocking(move || snapshotter.freeze_for_pause().map_err(std::io::Error::other));
        let snapshots = Snapshots::of(live);
        let (room, stood) = tokio::join!(snapshots.room(&held.facts.tenant), standing);
        let room = room?;
        let stood = stood.map_err(|why| room.fault(&why))?;
        let spare = Arc::clone(&live.0.layers.spare);
        let shared = Arc::clone(&room);
        let stood = blocking(move || {
            let Some((still, layer)) = stood else { return Ok(None) };
            let resume_spec = of.itself();
            let new = NewFile { store: &store, id, room: &shared };
            let kept = new.reserve(layer.sizes()?.about, &resume_spec)?;
            let plain = PausedLayer::begin(&of.facts.tenant, layer, kept, resume_spec, &spare)?;
            Ok(Some((still, PauseFiles::Plain(Box::new(plain)))))
        });
        let stood = stood.await.map_err(|why| room.fault(&why))?;
        match stood {
            Some(stood) => Ok(stood),
            None => {
                let (still, kept) = Snapshots::of(live).keep_files(held, held.itself()).await?;
                Ok((still, PauseFiles::Sealed(kept)))
            }
        }
    }

    /// Pauses a sandbox whose layer stays: it is sealed after the answer.
    async fn plain(&self, still: FrozenSandbox, mut plain: PausedLayer) -> Result<()> {
        let Self { live, who, held, reason } = *self;
        fail_point("pause.held");
        let filed = Snapshots::of(live).filed(held, &plain.kept)?;
        let file_system = plain.layer.file_system();
        let form = SnapshotForm::Plain(&file_system);
        let new = filed.row(held, &plain.kept, SnapshotKind::Pause, None, form);
        let audit = Audit { reason, ..audit(who, "sandbox.pause", held, &plain.kept) };
        let paused = live.0.ledger.snapshots().pause(&new, &audit).await;
        let recorded =
            Snapshots::of(live).recorded(&mut plain.kept, paused, StoredFileTable::Snapshots).await;
        let is_unknown = recorded.is_err() && plain.kept.is_left();
        if !is_unknown && !matches!(recorded, Ok(true)) {
            plain.abandon().await;
            return recorded.and_then(|_| Err(over()));
        }
        fail_point("pause.recorded");
        held.leave(PauseLayer {
            layer: Arc::clone(&plain.layer),
            memory: Arc::clone(&plain.memory),
        });
        Layers::of(live).keep(filed.store, plain);
        if is_unknown {
            // It may be paused on record, so it cannot go on.
            held.end(EndOrder::Over);
            return recorded.map(|_| ());
        }
        held.end(EndOrder::Pause);
        still.end();
        fail_point("pause.ended");
        Ok(())
    }

    /// Pauses a sandbox whose files are sealed.
    async fn sealed(&self, still: FrozenSandbox, kept: SnapshotFile) -> Result<()> {
        let Self { live, who, held, reason } = *self;
        let mut kept = synced(kept).await?;
        let filed = Snapshots::of(live).filed(held, &kept)?;
        let form = SnapshotForm::Sealed(&kept.sha256);
        let new = filed.row(held, &kept, SnapshotKind::Pause, None, form);
        let audit = Audit { reason, ..audit(who, "sandbox.pause", held, &kept) };
        let paused = live.0.ledger.snapshots().pause(&new, &audit).await;
        let recorded =
            Snapshots::of(live).recorded(&mut kept, paused, StoredFileTable::Snapshots).await;
        if recorded.is_err() && kept.is_left() {
            // It may be paused on record, so it cannot go on.
            held.end(EndOrder::Over);
        }
        if !recorded? {
            return Err(over());
        }
        held.end(EndOrder::Pause);
        still.end();
        filed.store.give_name(&mut kept);
        Ok(())
    }
}
