//! A file that is about to be written on a shelf, in its tenant's room.

use std::io::{self, Write};
use std::sync::Arc;

use cofferdam_contracts::id::SnapshotId;
use cofferdam_sandbox::{KeepError, LayerKeeper, Sleeping, Still};

use crate::snapshot::again::Again;
use crate::snapshot::room::{Bounded, KeptRoom, SharedRoom};
use crate::snapshot::sealed::{FileOwner, Sealing};
use crate::snapshot::shelf::{KeptFile, Shelf, put_head};

/// A file to be made. Each way of making it blocks.
#[derive(Debug)]
pub(crate) struct NewFile<'a> {
    pub shelf: &'a Shelf,
    pub id: SnapshotId,
    pub room: &'a Arc<KeptRoom>,
}

impl NewFile<'_> {
    /// Locked, with room for a layer of this size and what was asked for, to be written by another process.
    pub(crate) fn reserve(self, size: u64, again: &Again) -> io::Result<KeptFile> {
        let mut kept = self.empty()?;
        kept.make_room(size, again)?;
        Ok(kept)
    }

    /// Locked, to be written by another process.
    pub(crate) fn empty(self) -> io::Result<KeptFile> {
        self.shelf.begin(self.id, self.room).map(|(kept, _)| kept)
    }

    /// Writes the files of a sandbox, with what was asked for at their head; gives the sandbox as it stands still.
    pub(crate) fn keep(
        self,
        again: &Again,
        keeper: &LayerKeeper,
        goes_on: &dyn Fn() -> bool,
    ) -> io::Result<(Still, KeptFile)> {
        self.write(again, |out| keeper.keep(out, goes_on))
    }

    /// The same with its memory, and why that is not in it where it is not.
    pub(crate) fn keep_memory(
        self,
        again: &Again,
        sleeping: Sleeping,
        goes_on: &dyn Fn() -> bool,
        falls_asleep: &dyn Fn(),
    ) -> io::Result<(Still, KeptFile, Option<io::Error>)> {
        let written = self.write(again, |out| sleeping.keep(out, goes_on, falls_asleep))?;
        let ((still, fault), mut kept) = written;
        kept.memory = fault.is_none();
        Ok((still, kept, fault))
    }

    /// Writes it with what was asked for at its head.
    fn write<T>(
        self,
        again: &Again,
        body: impl FnOnce(&mut dyn Write) -> Result<T, KeepError>,
    ) -> io::Result<(T, KeptFile)> {
        self.keep_bytes(|mut out| {
            put_head(&mut out, again)?;
            body(out).map_err(io::Error::other)
        })
    }

    /// Writes as many bytes as there is room for.
    pub(crate) fn keep_bytes<T>(
        self,
        body: impl FnOnce(&mut dyn Write) -> io::Result<T>,
    ) -> io::Result<(T, KeptFile)> {
        let Self { shelf, id, room } = self;
        let (mut kept, file) = shelf.begin(id, room)?;
        let shared = SharedRoom::new(room, &file)?;
        let file = Bounded::new(file, shared);
        let owner = FileOwner { tenant: room.tenant(), snapshot: &kept.id };
        let mut sealing = Sealing::new(file, &kept.key, owner)?;
        let done = match body(&mut sealing) {
            Ok(done) => done,
            Err(error) => return Err(sealing.why(error)),
        };
        let (_, sealed) = sealing.finish()?;
        (kept.bytes, kept.sha256) = (sealed.bytes, sealed.sha256);
        Ok((done, kept))
    }
}
