//! Files of a sandbox that stands still and may go on: of a snapshot, a fork, a layer of a build.
//!
//! ```text
//! sealer started -> sandbox stopped -> layer and file handed to it -> "sealed" -> it has ended -> the sandbox goes on
//! ```
//! **The layer is read by a process of its own**, whose memory has a bound: how many files a tenant has is nothing that the worker
//! feels. What lies in a machine is handed out by its agent and passes through the worker entry by entry.

use std::io;
use std::sync::Arc;

use cofferdam_contracts::error::ErrorCode;
use cofferdam_flows::Result;
use cofferdam_sandbox::{FrozenSandbox, LayerSnapshotError, LayerSnapshotter, stream_sizes};

use crate::background::blocking;
use crate::handle::LiveHandle;
use crate::ids::fresh;
use crate::layer::sealer::{SealInput, SealStart, Sealer};
use crate::refusal::refuse;
use crate::snapshot::handles::{FileHandle, LayerHandle};
use crate::snapshot::new_file::NewFile;
use crate::snapshot::resume_spec::ResumeSpec;
use crate::snapshot::snapshots::Snapshots;
use crate::snapshot::store::SnapshotFile;
use crate::snapshot::writer::FileOwner;

impl Snapshots {
    /// Stops a sandbox and writes its files. Call it while nothing wipes the sandbox.
    pub(crate) async fn keep_files(
        &self,
        held: &Arc<LiveHandle>,
        resume_spec: ResumeSpec,
    ) -> Result<(FrozenSandbox, SnapshotFile)> {
        let snapshotter = held.snapshotter.clone();
        let snapshotter =
            snapshotter.map_err(|why| refuse(ErrorCode::PolicyViolation, why.to_string()))?;
        let room = self.room(&held.facts.tenant).await?;
        let (store, id, held) = (Arc::clone(&self.live.0.store), fresh()?, Arc::clone(held));
        let shared = Arc::clone(&room);
        let spare =
            if snapshotter.can_detach_layer() { self.live.0.layers.spare.take() } else { None };
        let kept = blocking(move || {
            let new = NewFile { store: &store, id, room: &shared };
            if snapshotter.can_detach_layer() {
                return copied(new, &resume_spec, &snapshotter, &held, spare);
            }
            new.keep(&resume_spec, &snapshotter, &|| held.goes_on())
        });
        let kept = kept.await;
        self.live.0.layers.spare.want();
        kept.map_err(|why| room.fault(&why))
    }
}

/// Has a sealer write them. Blocking.
fn copied(
    new: NewFile<'_>,
    resume_spec: &ResumeSpec,
    snapshotter: &LayerSnapshotter,
    held: &LiveHandle,
    spare: Option<Sealer>,
) -> io::Result<(FrozenSandbox, SnapshotFile)> {
    let mut kept = new.empty()?;
    // A program starts before anything stands still for it.
    let spare = spare.map_or_else(Sealer::waiting, Ok)?;
    let stood = snapshotter.freeze_to_copy().and_then(|stood| {
        stood.ok_or_else(|| {
            LayerSnapshotError::Files(io::Error::other("its layer is not this host's"))
        })
    });
    let ready = stood.map_err(io::Error::other).and_then(|(still, dir, first_id)| {
        let layer = LayerHandle { dir, first_id };
        handed(&kept, resume_spec, held, layer).map(|(given, start)| (still, given, start))
    });
    let (still, given, start) = match ready {
        Ok(ready) => ready,
        Err(why) => {
            spare.end();
            return Err(why);
        }
    };
    let sealer = Sealer::begin(Some(spare), &given, start)?;
    let measured = match start {
        SealStart::MeasuredNow => {
            sealer.measured(&|| held.goes_on()).and_then(|size| kept.make_room(size, resume_spec))
        }
        _ => Ok(()),
    };
    let sealed = measured.and_then(|()| sealer.sealed(&|| held.goes_on()));
    // Nothing holds the layer once the sandbox goes on.
    sealer.end();
    drop(given);
    kept.sealed_as(sealed?);
    Ok((still, kept))
}

/// What a sealer is handed of a layer, once there is room for it.
fn handed(
    kept: &SnapshotFile,
    resume_spec: &ResumeSpec,
    held: &LiveHandle,
    layer: LayerHandle,
) -> io::Result<(SealInput, SealStart)> {
    let sizes = stream_sizes(&layer.dir)?;
    let (start, most) = match kept.most_of(sizes.most, resume_spec)? {
        Some(most) => (SealStart::Now, most),
        None => (SealStart::MeasuredNow, kept.most()),
    };
    // About as much as it will be: the disk is asked before others fill it.
    kept.allocate(sizes.about.min(most))?;
    let file = FileHandle { file: kept.descriptor()?, most };
    let owner = FileOwner { tenant: &held.facts.tenant, snapshot: &kept.id };
    Ok((SealInput::new(owner, &kept.key, resume_spec.clone(), layer, file)?, start))
}
