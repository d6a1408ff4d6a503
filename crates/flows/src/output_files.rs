//! Files that a task leaves: read out of its sandbox, large ones straight into the store; and as its result and the ledger have them.
//!
//! ```text
//! collection: head, pieces, head, pieces .. end
//!     up to 64 KiB, while 16 MiB of such have room --> memory, then a row of the database
//!     the others ------------------------------------> ObjectWriter, then a row that names the object
//! ```
//! **A file is kept whole or not at all: where the store fails, nothing of the collection is.** A test report is in memory while it is
//! read, and goes to the store behind that; where the store fails it stays where it is, since no report changes how its task ended.

use std::collections::{BTreeMap, BTreeSet};

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

/// Has the reports of a task, which are in memory, kept as its other files are: large ones in the store.
pub(crate) async fn store_reports(
    objects: &Objects,
    tenant: &TenantId,
    reports: &BTreeSet<String>,
    held: OutputFiles,
) -> OutputFiles {
    let OutputFiles { files, stored, mut staged, unmatched, omitted } = held;
    let due = if objects.has_store() { large(&files, reports) } else { Vec::new() };
    let found = report_objects(objects, tenant, &due, &stored).await;
    let (found, new) = found.unwrap_or_else(|error| {
        tracing::warn!(%tenant, ?error, "the reports of a task stay in the database");
        Default::default()
    });
    let (files, stored) = placed(files, stored, &found);
    staged.extend(new);
    // An artifact that is a report, too, and was read with other bytes then, is not kept.
    let kept: BTreeSet<&str> = stored.iter().map(|file| file.object.sha256.as_str()).collect();
    staged.retain(|object| kept.contains(object.row.sha256.as_str()));
    OutputFiles { files, stored, staged, unmatched, omitted }
}

/// Reports that are not for the database, within the room that the task's other files leave. Pure.
fn large<'a>(files: &'a [CollectedFile], reports: &BTreeSet<String>) -> Vec<&'a CollectedFile> {
    let size = |file: &CollectedFile| u64::try_from(file.bytes.len()).unwrap_or(u64::MAX);
    let is_own = |file: &&CollectedFile| file.mode.has_content() && reports.contains(&file.path);
    let (own, others): (Vec<_>, Vec<_>) = files.iter().partition(is_own);
    let mut room = IN_DATABASE_ALL_BYTES.saturating_sub(others.into_iter().map(size).sum());
    let is_large = |file: &&CollectedFile| {
        let is_small = size(file) <= IN_DATABASE_BYTES && size(file) <= room;
        if is_small {
            room -= size(file);
        }
        !is_small
    };
    own.into_iter().filter(is_large).collect()
}

/// The objects of reports by their paths, with those that were written for them. Bytes that an artifact of the task has are its
/// object.
async fn report_objects(
    objects: &Objects,
    tenant: &TenantId,
    reports: &[&CollectedFile],
    stored: &[StoredOutput],
) -> Result<(BTreeMap<String, NewObject>, Vec<DraftObject>), NoFiles> {
    let (mut found, mut paths, mut written) = (BTreeMap::new(), Vec::new(), Vec::new());
    for file in reports {
        let sha256 = digest_bytes(&file.bytes);
        if let Some(twin) = stored.iter().find(|twin| twin.object.sha256 == sha256) {
            found.insert(file.path.clone(), twin.object.clone());
            continue;
        }
        written.push(object_of(objects, tenant, &file.bytes).await?);
        paths.push(file.path.clone());
    }
    if written.is_empty() {
        return Ok((found, Vec::new()));
    }
    let (rows, staged) = objects.rows(tenant, written).await?;
    found.extend(paths.into_iter().zip(rows));
    Ok((found, staged))
}

async fn object_of(
    objects: &Objects,
    tenant: &TenantId,
    bytes: &[u8],
) -> Result<ObjectDraft, ObjectError> {
    let mut writer = objects.begin(tenant).await?;
    writer.write(bytes).await?;
    Ok(writer.finish().await?)
}

/// The files once reports are objects. A report stands for the artifact of its path: what it says was read from it. Pure.
fn placed(
    files: Vec<CollectedFile>,
    stored: Vec<StoredOutput>,
    reports: &BTreeMap<String, NewObject>,
) -> (Vec<CollectedFile>, Vec<StoredOutput>) {
    let paths: BTreeSet<String> = files.iter().map(|file| file.path.clone()).collect();
    let mut all = Vec::with_capacity(stored.len());
    let mut named = BTreeSet::new();
    for mut file in stored {
        match reports.get(&file.path) {
            Some(object) => {
                named.insert(file.path.clone());
                file.object = object.clone();
            }
            None if paths.contains(&file.path) => continue,
            None => {}
        }
        all.push(file);
    }
    let mut held = Vec::with_capacity(files.len());
    for file in files {
        match reports.get(&file.path) {
            Some(_) if named.contains(&file.path) => {}
            Some(object) => {
                let CollectedFile { path, mode, .. } = file;
                let (before, object) = (held.len(), object.clone());
                all.push(StoredOutput { before, path, mode, object });
            }
            None => held.push(file),
        }
    }
    (held, all)
}

/// The files in their order: what the result says of each, and what is kept of it.
pub(crate) fn records(
    files: Vec<CollectedFile>,
    stored: Vec<StoredOutput>,
) -> (Vec<OutputFile>, Vec<NewArtifact>) {
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

#[cfg(test)]
mod tests {
    use cofferdam_contracts::id::ObjectId;

    use super::*;

    fn file(path: &str, bytes: usize) -> CollectedFile {
        CollectedFile { path: path.to_owned(), bytes: vec![b'x'; bytes], mode: ArtifactMode::File }
    }

    fn object(text: &str) -> NewObject {
        NewObject {
            id: ObjectId::parse(&"9".repeat(32)).unwrap(),
            store: "f".repeat(32),
            sha256: digest_bytes(text.as_bytes()),
            size: 9,
            sealed_key: vec![0; 60],
            sealed_by: digest_bytes(b"key"),
        }
    }

    fn stored(before: usize, path: &str, text: &str) -> StoredOutput {
        let object = object(text);
        StoredOutput { before, path: path.to_owned(), mode: ArtifactMode::Executable, object }
    }

    #[test]
    fn reports_are_for_the_store_by_their_size_and_by_the_room_that_is_left() {
        let (small, all) = (64 * 1024, 16 * 1024 * 1024);
        let due = |files: &[CollectedFile], reports: &[&str]| -> Vec<String> {
            let reports = reports.iter().map(|path| (*path).to_owned()).collect();
            large(files, &reports).iter().map(|file| file.path.clone()).collect()
        };
        let files = [file("other", small + 1), file("a", small), file("b", small + 1)];
        assert_eq!(due(&files, &["a", "b"]), ["b"], "other files stay");
        let files = [file("a", small), file("b", 1), file("c", 1), file("other", all - small - 1)];
        assert_eq!(due(&files, &["a", "b", "c"]), ["c"]);
        assert!(due(&files, &[]).is_empty());
    }

    #[test]
    fn a_report_that_is_an_object_has_its_place_and_stands_for_its_artifact() {
        let files = vec![file("a", 1), file("m.xml", 3), file("n.xml", 3), file("small.xml", 1)];
        let held =
            vec![stored(0, "0", "0"), stored(1, "n.xml", "cut"), stored(1, "small.xml", "was")];
        let reports = ["m.xml", "n.xml"].map(|path| (path.to_owned(), object(path)));
        let (files, all) = placed(files, held, &reports.into());
        let (kept, artifacts) = records(files, all);
        let paths: Vec<&str> = kept.iter().map(|file| file.path.as_str()).collect();
        assert_eq!(paths, ["0", "a", "n.xml", "m.xml", "small.xml"]);
        let digests = ["n.xml", "m.xml"].map(|text| digest_bytes(text.as_bytes()));
        assert_eq!(
            [&kept[2].sha256, &kept[3].sha256],
            [&digests[0], &digests[1]],
            "as it was read"
        );
        assert_eq!(kept[2].mode, ArtifactMode::Executable, "as the artifact has it");
        let is_stored: Vec<bool> =
            artifacts.iter().map(|new| matches!(new.content, NewContent::Object(_))).collect();
        assert_eq!(is_stored, [true, false, true, true, false]);
    }
}
