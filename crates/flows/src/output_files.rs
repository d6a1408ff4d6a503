//! Files that a task leaves: read out of its sandbox, large ones straight into the store; and as its result and the ledger have them.
//!
//! ```text
//! collection: head, pieces, head, pieces .. end
//!     up to 64 KiB, while 16 MiB of such have room --> memory, then a row of the database
//!     the others ------------------------------------> ObjectWriter, then a row that names the object
//! ```
//! **A file is kept whole or not at all: where the store fails, nothing of the collection is.**

use std::collections::BTreeSet;

use cofferdam_contracts::artifact::{ArtifactKind, ArtifactMode, FileOmission, OutputFile};
use cofferdam_contracts::canonical::digest_bytes;
use cofferdam_contracts::id::TenantId;
use cofferdam_contracts::run_file::FILES;
use cofferdam_ledger::artifacts::{NewArtifact, NewContent};
use cofferdam_ledger::objects::NewObject;
use cofferdam_sandbox::{
    CollectedFile, CollectedHead, CollectionItem, Sandbox, SandboxError, encode_name, is_encoded,
};
use cofferdam_store::{ObjectDraft, ObjectWriter};

use crate::draft_objects::DraftObject;
use crate::error::Error;
use crate::objects::{ObjectError, Objects};

/// Bytes up to which a file stays in the database: reading one there takes as long as opening an object of the store.
pub(crate) const IN_DATABASE_BYTES: u64 = 64 * 1024;
/// Bytes of such files of one task together: they are in memory until its end. The others are objects, however small.
pub(crate) const IN_DATABASE_ALL_BYTES: u64 = 16 * 1024 * 1024;

/// The files that a task declared, read out.
#[derive(Debug, Default)]
pub(crate) struct OutputFiles {
    /// Those in memory, in the order of their paths.
    pub files: Vec<CollectedFile>,
    /// Those in the store.
    pub stored: Vec<StoredOutput>,
    /// Their objects as they were written, to be settled with the end of the task.
    pub staged: Vec<DraftObject>,
    /// Which globs matched nothing.
    pub unmatched: Vec<usize>,
    /// What is beyond a bound.
    pub omitted: Option<FileOmission>,
}

/// A file whose bytes are in the store.
#[derive(Debug)]
pub(crate) struct StoredOutput {
    /// How many files in memory have smaller paths.
    before: usize,
    /// Its path below the working directory.
    pub path: String,
    mode: ArtifactMode,
    object: NewObject,
}

/// Why files were not read out.
#[derive(Debug)]
pub(crate) enum NoFiles {
    /// The sandbox does not give them.
    Sandbox(SandboxError),
    /// The store does not take them.
    Object(ObjectError),
    /// The ledger does not answer.
    Ledger(Error),
}

impl From<SandboxError> for NoFiles {
    fn from(error: SandboxError) -> Self {
        Self::Sandbox(error)
    }
}

impl From<ObjectError> for NoFiles {
    fn from(error: ObjectError) -> Self {
        Self::Object(error)
    }
}

impl From<Error> for NoFiles {
    fn from(error: Error) -> Self {
        Self::Ledger(error)
    }
}

/// Where the bytes go that come next.
enum OpenFile {
    Nowhere,
    Memory,
    Store(Box<OpenObject>),
}

/// An object that is being written.
struct OpenObject {
    writer: ObjectWriter,
    /// How many files in memory have smaller paths.
    before: usize,
    head: CollectedHead,
}

/// Files on their way out of a sandbox.
struct Intake<'a> {
    objects: &'a Objects,
    tenant: &'a TenantId,
    has_store: bool,
    /// Bytes that may still stay in memory.
    room: u64,
    open: OpenFile,
    files: Vec<CollectedFile>,
    written: Vec<(usize, CollectedHead, ObjectDraft)>,
}

impl Intake<'_> {
    async fn begin(&mut self, head: CollectedHead) -> Result<(), ObjectError> {
        self.close().await?;
        let is_small = head.size <= IN_DATABASE_BYTES && head.size <= self.room;
        let is_file = head.mode.has_content();
        if self.has_store && is_file && !is_small {
            let writer = self.objects.begin(self.tenant).await?;
            let before = self.files.len();
            self.open = OpenFile::Store(Box::new(OpenObject { writer, before, head }));
            return Ok(());
        }
        self.room = self.room.saturating_sub(head.size);
        let CollectedHead { path, mode, .. } = head;
        self.files.push(CollectedFile { path, bytes: Vec::new(), mode });
        self.open = OpenFile::Memory;
        Ok(())
    }

    async fn take(&mut self, piece: &[u8]) -> Result<(), ObjectError> {
        match &mut self.open {
            OpenFile::Store(object) => object.writer.write(piece).await?,
            OpenFile::Memory => {
                if let Some(file) = self.files.last_mut() {
                    file.bytes.extend_from_slice(piece);
                }
            }
            OpenFile::Nowhere => {}
        }
        Ok(())
    }

    /// The file that is open is whole.
    async fn close(&mut self) -> Result<(), ObjectError> {
        let open = std::mem::replace(&mut self.open, OpenFile::Nowhere);
        if let OpenFile::Store(object) = open {
            let OpenObject { writer, before, head } = *object;
            self.written.push((before, head, writer.finish().await?));
        }
        Ok(())
    }
}

/// Reads out what a task declared, within what its tenant may keep.
pub(crate) async fn declared(
    objects: &Objects,
    tenant: &TenantId,
    sandbox: &Sandbox,
    root: &str,
    globs: Vec<String>,
) -> Result<OutputFiles, NoFiles> {
    let (bounds, has_store) = objects.bounds(tenant).await?;
    let mut collection = sandbox.files().collect_declared(root, globs, bounds).await?;
    let mut intake = Intake {
        objects,
        tenant,
        has_store,
        room: IN_DATABASE_ALL_BYTES,
        open: OpenFile::Nowhere,
        files: Vec::new(),
        written: Vec::new(),
    };
    let end = loop {
        match collection.next().await? {
            CollectionItem::File(head) => intake.begin(head).await?,
            CollectionItem::Bytes(piece) => intake.take(&piece).await?,
            CollectionItem::End(end) => break end,
        }
    };
    intake.close().await?;
    let Intake { files, written, .. } = intake;
    let mut places = Vec::with_capacity(written.len());
    let mut new = Vec::with_capacity(written.len());
    for (before, head, staged) in written {
        places.push((before, head));
        new.push(staged);
    }
    let (rows, staged) = objects.rows(tenant, new).await?;
    let stored = places.into_iter().zip(rows);
    let stored = stored
        .map(|((before, CollectedHead { path, mode, .. }), object)| StoredOutput {
            before,
            path,
            mode,
            object,
        })
        .collect();
    Ok(OutputFiles { files, stored, staged, unmatched: end.unmatched, omitted: end.omitted })
}

/// The files in their order: what the result says of each, and what is kept of it. A file that was read into memory later, such as a
/// report, stands for the one of its path that is in the store.
pub(crate) fn records(
    files: Vec<CollectedFile>,
    stored: Vec<StoredOutput>,
) -> (Vec<OutputFile>, Vec<NewArtifact>) {
    let held: BTreeSet<&str> = files.iter().map(|file| file.path.as_str()).collect();
    let stored: Vec<StoredOutput> =
        stored.into_iter().filter(|file| !held.contains(file.path.as_str())).collect();
    let mut stored = stored.into_iter().peekable();
    let mut all = Vec::with_capacity(files.len());
    for (index, file) in files.into_iter().enumerate() {
        while let Some(file) = stored.next_if(|file| file.before <= index) {
            all.push(stored_record(file));
        }
        all.push(record(file));
    }
    all.extend(stored.map(stored_record));
    all.into_iter().unzip()
}

fn record(file: CollectedFile) -> (OutputFile, NewArtifact) {
    let (mode, encoded) = (file.mode, file.is_encoded());
    let target = (mode == ArtifactMode::Link).then(|| encode_name(&file.bytes));
    let kept = OutputFile {
        path: file.path.clone(),
        encoded,
        sha256: digest_bytes(&file.bytes),
        size: u64::try_from(file.bytes.len()).unwrap_or(u64::MAX),
        mode,
        target: target.clone(),
    };
    let (kind, name) = (ArtifactKind::File, format!("{FILES}{}", file.path));
    (kept, NewArtifact { kind, name, content: NewContent::Bytes(file.bytes), mode, target })
}

fn stored_record(file: StoredOutput) -> (OutputFile, NewArtifact) {
    let StoredOutput { path, mode, object, .. } = file;
    let kept = OutputFile {
        encoded: is_encoded(&path),
        sha256: object.sha256.clone(),
        size: object.size,
        mode,
        target: None,
        path,
    };
    let (kind, name) = (ArtifactKind::File, format!("{FILES}{}", kept.path));
    (kept, NewArtifact { kind, name, content: NewContent::Object(object), mode, target: None })
}
