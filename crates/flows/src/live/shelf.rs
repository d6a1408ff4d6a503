//! Files of snapshots on this host.
//!
//! ```text
//! keep: ID.part (locked, sealed piece by piece) -> fsync -> the row commits -> ID.snap
//! ```
//! **A file without a row is garbage**: its key was in memory alone. A `.part` that nobody has locked is one of a process that
//! was killed: with a row it is whole and gets its name, without one it is removed.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use cofferdam_ambient::random::secret_bytes;
use cofferdam_contracts::id::{Digest, SnapshotId, TenantId};
use cofferdam_sandbox::{Filling, KeepError, LayerKeeper, Sleeping, Still};

use super::registry::Again;
use super::sealed::{Opening, Sealing, sha256};
use crate::vault::FileKey;

const PART: &str = "part";
const WHOLE: &str = "snap";
/// Bytes of a request at the head of a stream: its environment has 1 MiB, and escapes.
const MAX_REQUEST: usize = 8 * 1024 * 1024;
const BUFFER: usize = 1024 * 1024;

/// Where they lie.
#[derive(Debug)]
pub(crate) struct Shelf {
    dir: PathBuf,
}

/// A file that was written and is not yet on record. Dropped, it is removed.
#[derive(Debug)]
pub(crate) struct KeptFile {
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
}

impl Shelf {
    pub(crate) fn of(dir: &Path) -> Self {
        // The same whatever the working directory of the next process is.
        Self { dir: std::path::absolute(dir).unwrap_or_else(|_| dir.to_owned()) }
    }

    /// Where its files are, as rows have it: other hosts and other state directories have others.
    pub(crate) fn place(&self) -> String {
        format!("{}:{}", crate::host_id(), self.dir.display())
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

    /// Writes the files of a sandbox, with what was asked for at their head; gives the sandbox as it stands still. Blocking.
    pub(crate) fn keep(
        &self,
        (tenant, id): (&TenantId, SnapshotId),
        again: &Again,
        keeper: &LayerKeeper,
        goes_on: &dyn Fn() -> bool,
    ) -> io::Result<(Still, KeptFile)> {
        self.write((tenant, id), again, |out| keeper.keep(out, goes_on))
    }

    /// The same with its memory, and why that is not in it where it is not. Blocking.
    pub(crate) fn keep_memory(
        &self,
        (tenant, id): (&TenantId, SnapshotId),
        again: &Again,
        sleeping: Sleeping,
        goes_on: &dyn Fn() -> bool,
    ) -> io::Result<(Still, KeptFile, Option<io::Error>)> {
        let written = self.write((tenant, id), again, |out| sleeping.keep(out, goes_on))?;
        let ((still, fault), mut kept) = written;
        kept.memory = fault.is_none();
        Ok((still, kept, fault))
    }

    /// Writes a file with what was asked for at its head.
    fn write<T>(
        &self,
        (tenant, id): (&TenantId, SnapshotId),
        again: &Again,
        body: impl FnOnce(&mut dyn Write) -> Result<T, KeepError>,
    ) -> io::Result<(T, KeptFile)> {
        self.make()?;
        let part = self.at(&id, PART);
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&part)?;
        file.lock()?;
        let key = FileKey::new(secret_bytes());
        let digest = Digest::parse(&"0".repeat(64)).map_err(io::Error::other)?;
        let locked = file.try_clone()?;
        // From here on it is removed, however this ends.
        let mut kept = KeptFile {
            id,
            bytes: 0,
            sha256: digest,
            key,
            memory: false,
            file: locked,
            part,
            recorded: false,
        };
        let out = BufWriter::with_capacity(BUFFER, &file);
        let mut sealing = Sealing::new(out, &kept.key, (tenant, &kept.id))?;
        let head = zeroize::Zeroizing::new(serde_json::to_vec(again)?);
        sealing.write_all(&u32::try_from(head.len()).map_err(io::Error::other)?.to_le_bytes())?;
        sealing.write_all(&head)?;
        let done = body(&mut sealing).map_err(io::Error::other)?;
        let (out, bytes, sha256) = sealing.finish()?;
        drop(out);
        (kept.bytes, kept.sha256) = (bytes, sha256);
        Ok((done, kept))
    }

    /// Once it is on record.
    pub(crate) fn give_name(&self, kept: &mut KeptFile) {
        kept.recorded = true;
        if let Err(why) = self.rename(&kept.id) {
            // It is whole and is found all the same.
            tracing::warn!(snapshot = %kept.id, %why, "a snapshot's file keeps the name of a part until the next start");
        }
    }

    fn sync(&self) -> io::Result<()> {
        File::open(&self.dir)?.sync_all()
    }

    /// Opens the file of a snapshot on record and looks whether it is what was recorded. Blocking.
    pub(crate) fn open(
        &self,
        (tenant, id): (&TenantId, &SnapshotId),
        key: &FileKey,
        recorded: &Digest,
    ) -> io::Result<(Again, Filling)> {
        let whole = self.at(id, WHOLE);
        let file = match File::open(&whole) {
            // Its process was killed between the record and the name.
            Err(error) if error.kind() == io::ErrorKind::NotFound => File::open(self.at(id, PART))?,
            opened => opened?,
        };
        if sha256(&file)? != *recorded {
            let what = "its bytes are not those that were recorded";
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
        io::Seek::rewind(&mut &file)?;
        filling(file, key, (tenant, id))
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

    /// Files that killed processes left unnamed.
    pub(crate) fn left(&self) -> io::Result<Vec<SnapshotId>> {
        let entries = match fs::read_dir(&self.dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries?,
        };
        let mut left = Vec::new();
        for entry in entries {
            let path = entry?.path();
            let id = path.file_stem().and_then(|stem| stem.to_str()).map(SnapshotId::parse);
            let is_part = path.extension().is_some_and(|ending| ending == PART);
            let (true, Some(Ok(id))) = (is_part, id) else { continue };
            // Its process lives.
            if File::open(&path).is_ok_and(|file| file.try_lock().is_ok()) {
                left.push(id);
            }
        }
        Ok(left)
    }

    /// Gives one that is on record its name.
    pub(crate) fn rename(&self, id: &SnapshotId) -> io::Result<()> {
        fs::rename(self.at(id, PART), self.at(id, WHOLE))?;
        self.sync()
    }
}

/// Reads the request at the head of a file; what follows are the files of a layer.
fn filling(
    file: File,
    key: &FileKey,
    of: (&TenantId, &SnapshotId),
) -> io::Result<(Again, Filling)> {
    let mut opening = Opening::new(BufReader::with_capacity(BUFFER, file), key, of)?;
    let mut size = [0; 4];
    opening.read_exact(&mut size)?;
    let size = usize::try_from(u32::from_le_bytes(size)).unwrap_or(usize::MAX);
    if size > MAX_REQUEST {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "its request is too long"));
    }
    let mut head = zeroize::Zeroizing::new(vec![0; size]);
    opening.read_exact(&mut head)?;
    let again: Again = serde_json::from_slice(&head)?;
    let filling = match again.memory {
        true => Filling::with_memory(opening, true),
        false => Filling::new(opening),
    };
    Ok((again, filling))
}

impl KeptFile {
    /// Makes sure that it outlives the host's power.
    pub(crate) fn sync(&self) -> io::Result<()> {
        self.file.sync_all()
    }

    /// It may be on record: it is not removed.
    pub(crate) fn leave(&mut self) {
        self.recorded = true;
    }

    /// Whether it stays, on record or not.
    pub(crate) fn is_left(&self) -> bool {
        self.recorded
    }

    /// The files, for another sandbox.
    pub(crate) fn filling(&self, tenant: &TenantId) -> io::Result<Filling> {
        Ok(filling(File::open(&self.part)?, &self.key, (tenant, &self.id))?.1)
    }
}

impl Drop for KeptFile {
    fn drop(&mut self) {
        if !self.recorded {
            // What stays is swept by the next worker.
            let _ = fs::remove_file(&self.part);
        }
    }
}
