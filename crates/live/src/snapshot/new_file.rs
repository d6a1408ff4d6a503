//! A file that is about to be written to the snapshot store, within its tenant's allowance.

use std::io::{self, Write};
use std::sync::Arc;

use cofferdam_contracts::id::SnapshotId;
use cofferdam_sandbox::{FrozenSandbox, LayerSnapshotError, LayerSnapshotter, SleepHandle};

use crate::snapshot::allowance::{LimitWriter, SharedAllowance, WriteAllowance};
use crate::snapshot::resume_spec::ResumeSpec;
use crate::snapshot::store::{SnapshotFile, SnapshotStore, put_head};
use crate::snapshot::writer::{FileOwner, SealWriter};

/// A file to be made. Each way of making it blocks.
#[derive(Debug)]
pub(crate) struct NewFile<'a> {
    pub store: &'a SnapshotStore,
    pub id: SnapshotId,
    pub room: &'a Arc<WriteAllowance>,
}

impl NewFile<'_> {
    /// Locked, with room for a layer of this size and what was asked for, to be written by another process.
    pub(crate) fn reserve(self, size: u64, resume_spec: &ResumeSpec) -> io::Result<SnapshotFile> {
        let mut kept = self.empty()?;
        kept.make_room(size, resume_spec)?;
        Ok(kept)
    }

    /// Locked, to be written by another process.
    pub(crate) fn empty(self) -> io::Result<SnapshotFile> {
        self.store.begin(self.id, self.room).map(|(kept, _)| kept)
    }

    /// Writes the files of a sandbox, with what was asked for at their head; gives the sandbox as it stands still.
    pub(crate) fn keep(
        self,
        resume_spec: &ResumeSpec,
        snapshotter: &LayerSnapshotter,
        goes_on: &dyn Fn() -> bool,
    ) -> io::Result<(FrozenSandbox, SnapshotFile)> {
        self.write(resume_spec, |out| snapshotter.snapshot(out, goes_on))
    }

    /// The same with its memory, and why that is not in it where it is not.
    pub(crate) fn keep_memory(
        self,
        resume_spec: &ResumeSpec,
        sleeping: SleepHandle,
        goes_on: &dyn Fn() -> bool,
        falls_asleep: &dyn Fn(),
    ) -> io::Result<(FrozenSandbox, SnapshotFile, Option<io::Error>)> {
        let written =
            self.write(resume_spec, |out| sleeping.snapshot(out, goes_on, falls_asleep))?;
        let ((still, fault), mut kept) = written;
        kept.memory = fault.is_none();
        Ok((still, kept, fault))
    }

    /// Writes it with what was asked for at its head.
    fn write<T>(
        self,
        resume_spec: &ResumeSpec,
        body: impl FnOnce(&mut dyn Write) -> Result<T, LayerSnapshotError>,
    ) -> io::Result<(T, SnapshotFile)> {
        self.keep_bytes(|mut out| {
            put_head(&mut out, resume_spec)?;
            body(out).map_err(io::Error::other)
        })
    }

    /// Writes as many bytes as there is room for.
    pub(crate) fn keep_bytes<T>(
        self,
        body: impl FnOnce(&mut dyn Write) -> io::Result<T>,
    ) -> io::Result<(T, SnapshotFile)> {
        let Self { store, id, room } = self;
        let (mut kept, file) = store.begin(id, room)?;
        let shared = SharedAllowance::new(room, &file)?;
        let file = LimitWriter::new(file, shared);
        let owner = FileOwner { tenant: room.tenant(), snapshot: &kept.id };
        let mut sealing = SealWriter::new(file, &kept.key, owner)?;
        let done = match body(&mut sealing) {
            Ok(done) => done,
            Err(error) => return Err(sealing.why(error)),
        };
        let (_, sealed) = sealing.finish()?;
        (kept.bytes, kept.sha256) = (sealed.bytes, sealed.sha256);
        Ok((done, kept))
    }
}
