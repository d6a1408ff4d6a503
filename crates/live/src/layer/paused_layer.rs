//! A layer that a pause leaves, and the sealer that has it from before the pause is on record.

use std::io;
use std::sync::Arc;

use cofferdam_contracts::id::TenantId;
use cofferdam_sandbox::DetachedLayer;

use crate::background::blocking;
use crate::layer::layer_memory::LayerMemory;
use crate::layer::sealer::spare::SpareSealer;
use crate::layer::sealer::{SealInput, SealStart, Sealer};
use crate::snapshot::handles::{FileHandle, LayerHandle};
use crate::snapshot::resume_spec::ResumeSpec;
use crate::snapshot::store::SnapshotFile;
use crate::snapshot::writer::FileOwner;

/// A layer that its pause leaves, and its sealer.
#[derive(Debug)]
pub(crate) struct PausedLayer {
    pub layer: Arc<DetachedLayer>,
    /// Memory of the paused sandbox, once that is wiped.
    pub memory: Arc<LayerMemory>,
    /// The file to be, locked: who removes it waits for the layer.
    pub kept: SnapshotFile,
    pub tenant: TenantId,
    pub resume_spec: Arc<ResumeSpec>,
    /// What a further sealer is given, should this one fail.
    pub given: SealInput,
    pub sealer: Sealer,
}

impl PausedLayer {
    /// Has a layer sealed into a file for which there is room, by the sealer that waits for work where there is one. Blocking.
    ///
    /// # Errors
    /// There is no room, or no sealer starts.
    pub(crate) fn begin(
        tenant: &TenantId,
        layer: DetachedLayer,
        mut kept: SnapshotFile,
        resume_spec: ResumeSpec,
        spare: &SpareSealer,
    ) -> io::Result<Self> {
        let (start, most) = match kept.most_of(layer.sizes()?.most, &resume_spec)? {
            Some(most) => (SealStart::Soon, most),
            None => (SealStart::Measured, kept.most()),
        };
        let handle = LayerHandle { dir: layer.descriptor()?, first_id: layer.first_id() };
        let file = FileHandle { file: kept.descriptor()?, most };
        let owner = FileOwner { tenant, snapshot: &kept.id };
        let given = SealInput::new(owner, &kept.key, resume_spec.clone(), handle, file)?;
        let sealer = Sealer::begin(spare.take(), &given, start)?;
        if start == SealStart::Measured {
            // What no kernel counts is found before the answer.
            let size = sealer.measured(&|| true);
            if let Err(why) = size.and_then(|size| kept.make_room(size, &resume_spec)) {
                layer.let_go();
                sealer.end();
                return Err(why);
            }
        }
        let (tenant, memory) = (tenant.clone(), Arc::default());
        let (layer, resume_spec) = (Arc::new(layer), Arc::new(resume_spec));
        Ok(Self { layer, memory, kept, tenant, resume_spec, given, sealer })
    }

    /// Gives the layer up: its pause is not on record, and its sandbox goes on.
    pub(crate) async fn abandon(self) {
        let Self { layer, sealer, kept, .. } = self;
        layer.let_go();
        let _ = blocking(move || {
            sealer.end();
            drop(kept);
            Ok(())
        })
        .await;
    }
}
