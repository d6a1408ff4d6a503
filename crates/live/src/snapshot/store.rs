//! Files of snapshots on this host.
//!
//! ```text
//! keep: ID.part (locked, sealed piece by piece) -> fsync -> the row commits -> ID.snap
//! ```
//! A pause reserves ID.part for the process that seals its layer (`sealer`), which has its lock. **A file without a row is
//! garbage**: its key was in memory alone. A `.part` that nobody has locked was left by a process that was killed: with a row
//! it is whole and gets its name; without one it is removed.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cofferdam_ambient::file_lock::FileLock;
use cofferdam_ambient::random::secret_bytes;
use cofferdam_contracts::id::{Digest, SnapshotId, TenantId};
use cofferdam_flows::FileKey;
use cofferdam_ledger::snapshots::SealedFile;
use cofferdam_sandbox::InitialFiles;

use crate::snapshot::allowance::{WriteAllowance, allocate};
use crate::snapshot::reader::SnapshotReader;
use crate::snapshot::resume_spec::ResumeSpec;
use crate::snapshot::writer::{FileOwner, sealed_size, sha256};

const PART: &str = "part";
const WHOLE: &str = "snap";
/// Below the directory: files that no row knows.
const ASIDE: &str = "unknown";
/// Bytes of a request at the head of a stream: its environment has 1 MiB, and escapes.
const MAX_REQUEST: usize = 8 * 1024 * 1024;

/// Where they lie.
#[derive(Debug)]
pub(crate) struct SnapshotStore {
    dir: PathBuf,
}

/// A file that was written and is not yet on record. Dropped, it is removed.
#[derive(Debug)]
pub(crate) struct SnapshotFile {
    pub id: SnapshotId,
    pub bytes: u64,
    pub sha256: Digest,
    pub key: FileKey,
    /// Whether its memory is in it, whole.
    pub memory: bool,
    /// Locked, so that nobody takes it for a dead process's.
    file: File,
    part: PathBuf,
    recorded: bool,
    /// Until it is on record, where the ledger counts it.
    room: Option<Arc<WriteAllowance>>,
}

impl SnapshotStore {
    pub(crate) fn of(dir: &Path) -> Self {
        // The same whatever the working directory of the next process is.
        Self { dir: std::path::absolute(dir).unwrap_or_else(|_| dir.to_owned()) }
    }

    /// Where its files are, as rows have it: other hosts and other state directories have others.
    pub(crate) fn place(&self) -> String {
        format!("{}:{}", cofferdam_flows::host_id(), self.dir.display())
    }

    fn at(&self, id: &SnapshotId, ending: &str) -> PathBuf {
        self.dir.join(format!("{id}.{ending}"))
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    pub(crate) fn make(&self) -> io::Result<()> {
        match DirBuilder::new().mode(0o700).create(&self.dir) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            _ => Ok(()),
        }
    }

    /// Makes a locked file for a snapshot. It is removed unless it is on record.
    #[expect(clippy::disallowed_methods, reason = "the process that seals shares the lock")]
    pub(crate) fn begin(
        &self,
        id: SnapshotId,
        room: &Arc<WriteAllowance>,
    ) -> io::Result<(SnapshotFile, File)> {
        self.make()?;
        let part = self.at(&id, PART);
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&part)?;
        let locked = file.try_clone()?;
        let key = FileKey::new(secret_bytes());
        let sha256 = Digest::parse(&"0".repeat(64)).map_err(io::Error::other)?;
        // From here on it is removed, however this ends.
        let kept = SnapshotFile {
            id,
            bytes: 0,
            sha256,
            key,
            memory: false,
            file: locked,
            part,
            recorded: false,
            room: Some(Arc::clone(room)),
        };
        file.lock()?;
        Ok((kept, file))
    }

    /// The file of a snapshot on record.
    pub(crate) fn file(&self, id: &SnapshotId) -> io::Result<File> {
        let opened = self.opened(id)?.map(|(_, file)| file);
        opened.ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// Its file and the ending of that; `None`: there is none.
    fn opened(&self, id: &SnapshotId) -> io::Result<Option<(&'static str, File)>> {
        // Its process may have been killed between the record and the name, and another may give it the name meanwhile.
        for ending in [WHOLE, PART, WHOLE] {
            match File::open(self.at(id, ending)) {
                Ok(file) => return Ok(Some((ending, file))),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    /// Once it is on record.
    pub(crate) fn give_name(&self, kept: &mut SnapshotFile) {
        kept.leave();
        if let Err(why) = self.rename(&kept.id) {
            // It is whole and is found all the same.
            tracing::warn!(snapshot = %kept.id, %why, "a snapshot's file keeps the name of a part until the next start");
        }
    }

    fn sync(&self) -> io::Result<()> {
        File::open(&self.dir)?.sync_all()
    }

    /// Opens the file of a snapshot on record, whose frame is whole: its key opens no other bytes than those that were sealed
    /// under it. Blocking.
    pub(crate) fn open(
        &self,
        owner: FileOwner<'_>,
        key: &FileKey,
    ) -> io::Result<(ResumeSpec, InitialFiles)> {
        filling(self.file(owner.snapshot)?, key, owner)
    }

    /// Looks at the file of a snapshot that is not on record as sealed; one that is whole gets its name. Blocking.
    pub(crate) fn find(&self, owner: FileOwner<'_>, key: &FileKey) -> io::Result<FileState> {
        let id = owner.snapshot;
        let Some((ending, file)) = self.opened(id)? else { return Ok(FileState::Lost) };
        let Some(file) = FileLock::try_exclusive(file)? else { return Ok(FileState::Written) };
        let opened = SnapshotReader::new(file.try_clone()?, key, owner);
        match opened.and_then(|mut opened| io::copy(&mut opened, &mut io::sink())) {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::InvalidData => return Ok(FileState::Lost),
            Err(error) => return Err(error),
        }
        file.sync_all()?;
        io::Seek::rewind(&mut &*file)?;
        let sha256 = sha256(&*file)?;
        if ending == PART {
            self.rename(id)?;
        }
        Ok(FileState::Whole(SealedFile { bytes: file.metadata()?.len(), sha256 }))
    }

    /// Whether a process writes this snapshot's file, or has the layer that is in it.
    pub(crate) fn is_written(&self, id: &SnapshotId) -> bool {
        self.user(id) == FileUser::Somebody
    }

    /// Who has this snapshot's file. One that cannot be looked at is somebody's.
    pub(crate) fn user(&self, id: &SnapshotId) -> FileUser {
        let locked = |(_, file)| FileLock::try_exclusive(file);
        match self.opened(id).and_then(|found| found.map(locked).transpose()) {
            Ok(None) => FileUser::NoFile,
            Ok(Some(Some(_))) => FileUser::Nobody,
            Ok(Some(None)) | Err(_) => FileUser::Somebody,
        }
    }

    /// Removes the file of an erased snapshot, and looks that it is gone.
    pub(crate) fn remove(&self, id: &SnapshotId) -> io::Result<()> {
        for ending in [WHOLE, PART] {
            match fs::remove_file(self.at(id, ending)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        match self.dir.exists() {
            true => self.sync(),
            false => Ok(()),
        }
    }

    /// Files that are not named: killed processes left them, or they are being written.
    pub(crate) fn left(&self) -> io::Result<Vec<SnapshotId>> {
        self.listed(PART)
    }

    /// Files that have their names: each was on record before.
    pub(crate) fn whole(&self) -> io::Result<Vec<SnapshotId>> {
        self.listed(WHOLE)
    }

    fn listed(&self, ending: &str) -> io::Result<Vec<SnapshotId>> {
        let entries = match fs::read_dir(&self.dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries?,
        };
        let mut left = Vec::new();
        for entry in entries {
            let path = entry?.path();
            let id = path.file_stem().and_then(|stem| stem.to_str()).map(SnapshotId::parse);
            let is_asked = path.extension().is_some_and(|found| found == ending);
            let (true, Some(Ok(id))) = (is_asked, id) else { continue };
            left.push(id);
        }
        Ok(left)
    }

    /// Its files that no row knows.
    pub(crate) fn unknown(&self) -> StrayFiles<'_> {
        StrayFiles { store: self }
    }

    /// Gives one that is on record its name.
    pub(crate) fn rename(&self, id: &SnapshotId) -> io::Result<()> {
        fs::rename(self.at(id, PART), self.at(id, WHOLE))?;
        self.sync()
    }
}

/// Files that no row knows, set aside: a database of another time may know them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StrayFiles<'a> {
    store: &'a SnapshotStore,
}

impl StrayFiles<'_> {
    fn dir(self) -> PathBuf {
        self.store.dir.join(ASIDE)
    }

    fn at(self, id: &SnapshotId) -> PathBuf {
        self.dir().join(format!("{id}.{WHOLE}"))
    }

    /// Takes a file away. Where it is now.
    pub(crate) fn put(self, id: &SnapshotId) -> io::Result<PathBuf> {
        match DirBuilder::new().mode(0o700).create(self.dir()) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        fs::rename(self.store.at(id, WHOLE), self.at(id))?;
        self.store.sync()?;
        Ok(self.at(id))
    }

    /// Gives a row its file back. `false`: it is not here.
    pub(crate) fn take_back(self, id: &SnapshotId) -> io::Result<bool> {
        match fs::rename(self.at(id), self.store.at(id, WHOLE)) {
            Ok(()) => self.store.sync().map(|()| true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Removes what was set aside this long ago.
    pub(crate) fn age(self, now_s: i64, most_s: i64) -> io::Result<()> {
        let entries = match fs::read_dir(self.dir()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            entries => entries?,
        };
        for entry in entries {
            let entry = entry?;
            if now_s.saturating_sub(entry.metadata()?.ctime()) > most_s {
                fs::remove_file(entry.path())?;
            }
        }
        Ok(())
    }
}

/// Writes what was asked for at the head of a stream.
pub(crate) fn put_head(out: &mut impl Write, resume_spec: &ResumeSpec) -> io::Result<()> {
    let head = zeroize::Zeroizing::new(serde_json::to_vec(resume_spec)?);
    out.write_all(&u32::try_from(head.len()).map_err(io::Error::other)?.to_le_bytes())?;
    out.write_all(&head)
}

/// Who has the file of a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FileUser {
    /// A process writes it, or has the layer that is in it.
    Somebody,
    Nobody,
    NoFile,
}

/// What became of the file of a snapshot whose worker was lost before it was sealed.
#[derive(Debug)]
pub(crate) enum FileState {
    /// A process writes it.
    Written,
    /// It is whole.
    Whole(SealedFile),
    /// It is not there, or is not whole, and nobody writes it.
    Lost,
}

/// Reads the request at the head of a file; what follows are the files of a layer.
fn filling(
    file: File,
    key: &FileKey,
    owner: FileOwner<'_>,
) -> io::Result<(ResumeSpec, InitialFiles)> {
    let mut opening = SnapshotReader::new(file, key, owner)?;
    let mut size = [0; 4];
    opening.read_exact(&mut size)?;
    let size = usize::try_from(u32::from_le_bytes(size)).unwrap_or(usize::MAX);
    if size > MAX_REQUEST {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "its request is too long"));
    }
    let mut head = zeroize::Zeroizing::new(vec![0; size]);
    opening.read_exact(&mut head)?;
    let resume_spec: ResumeSpec = serde_json::from_slice(&head)?;
    let filling = match (resume_spec.memory, resume_spec.memory_last) {
        (true, false) => InitialFiles::with_memory(opening),
        (true, true) => InitialFiles::with_memory_last(opening),
        (false, _) => InitialFiles::new(opening),
    };
    Ok((resume_spec, filling))
}

/// Bytes of a file with a stream of this size behind what was asked for.
fn file_size(size: u64, resume_spec: &ResumeSpec) -> io::Result<u64> {
    let head = u64::try_from(serde_json::to_vec(resume_spec)?.len()).map_err(io::Error::other)?;
    Ok(sealed_size(size.saturating_add(head)))
}

impl SnapshotFile {
    /// Takes the tenant's allowance for a file with a stream of this size, and says how many bytes that is. `None`: there is not as
    /// much, so the stream is to be measured.
    pub(crate) fn most_of(&self, size: u64, resume_spec: &ResumeSpec) -> io::Result<Option<u64>> {
        let bytes = file_size(size, resume_spec)?;
        let more = bytes.saturating_sub(self.bytes);
        Ok(self.room.as_ref().filter(|room| room.has_taken(more)).map(|_| bytes))
    }

    /// Bytes that it may have now.
    pub(crate) fn most(&self) -> u64 {
        self.bytes.saturating_add(self.room.as_ref().map_or(0, |room| room.most()))
    }

    /// Reserves the tenant's allowance and the disk for a stream of this size. Blocking.
    pub(crate) fn make_room(&mut self, size: u64, resume_spec: &ResumeSpec) -> io::Result<()> {
        let bytes = file_size(size, resume_spec)?;
        if bytes > self.most() {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        if let Some(room) = &self.room {
            match bytes.checked_sub(self.bytes) {
                Some(more) => room.take(more)?,
                None => room.settle(bytes),
            }
        }
        self.allocate(bytes)?;
        self.bytes = bytes;
        Ok(())
    }

    /// Has the disk keep so many bytes for it.
    pub(crate) fn allocate(&self, bytes: u64) -> io::Result<()> {
        allocate(&self.file, bytes)
    }

    /// What it came to.
    pub(crate) fn sealed_as(&mut self, sealed: SealedFile) {
        if let Some(room) = &self.room {
            room.settle(sealed.bytes);
        }
        (self.bytes, self.sha256) = (sealed.bytes, sealed.sha256);
    }

    /// For the process that writes it, with its lock.
    pub(crate) fn descriptor(&self) -> io::Result<OwnedFd> {
        Ok(self.file.try_clone()?.into())
    }

    /// Makes sure that it outlives the host's power.
    pub(crate) fn sync(&self) -> io::Result<()> {
        self.file.sync_all()
    }

    /// It may be on record: it is not removed.
    pub(crate) fn leave(&mut self) {
        self.recorded = true;
        // What was reserved beyond is there for others: a paused layer may be retained for minutes.
        if let Some(room) = self.room.take() {
            room.settle(self.bytes);
        }
    }

    /// Whether it stays, on record or not.
    pub(crate) fn is_left(&self) -> bool {
        self.recorded
    }

    /// The files, for another sandbox.
    pub(crate) fn filling(&self, tenant: &TenantId) -> io::Result<InitialFiles> {
        let owner = FileOwner { tenant, snapshot: &self.id };
        Ok(filling(File::open(&self.part)?, &self.key, owner)?.1)
    }
}

impl Drop for SnapshotFile {
    fn drop(&mut self) {
        if !self.recorded {
            // What stays is swept by the next worker.
            let _ = fs::remove_file(&self.part);
        }
    }
}
