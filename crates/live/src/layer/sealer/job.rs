//! The work of a sealer, and the descriptors by which it is handed over.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt as _;

use cofferdam_contracts::id::{SnapshotId, TenantId};
use cofferdam_flows::FileKey;
use rustix::fs::{MemfdFlags, memfd_create};
use serde::{Deserialize, Serialize};
use zeroize::{Zeroize as _, Zeroizing};

use crate::snapshot::handles::{FileHandle, LayerHandle};
use crate::snapshot::resume_spec::ResumeSpec;
use crate::snapshot::writer::FileOwner;

/// What a sealer is to do, in memory that it reads once for each start.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SealJob {
    pub tenant: TenantId,
    pub snapshot: SnapshotId,
    pub key: String,
    pub first: u32,
    /// Bytes that the file may have.
    pub most: u64,
    pub resume_spec: ResumeSpec,
}

impl SealJob {
    /// Reads the job that a sealer was handed.
    pub(super) fn read(job: OwnedFd) -> io::Result<Self> {
        let job = File::from(job);
        let size = usize::try_from(job.metadata()?.len()).map_err(io::Error::other)?;
        let mut text = Zeroizing::new(vec![0; size]);
        job.read_exact_at(&mut text, 0)?;
        Ok(serde_json::from_slice(&text)?)
    }
}

impl Drop for SealJob {
    fn drop(&mut self) {
        self.key.zeroize();
    }
}

/// The job of a sealer, and descriptors of its layer and file.
#[derive(Debug)]
pub(crate) struct SealInput {
    /// The text of its [`SealJob`], in memory.
    pub job: OwnedFd,
    pub layer: OwnedFd,
    pub file: OwnedFd,
}

impl SealInput {
    /// To seal this layer into this file.
    pub(crate) fn new(
        owner: FileOwner<'_>,
        key: &FileKey,
        resume_spec: ResumeSpec,
        layer: LayerHandle,
        file: FileHandle,
    ) -> io::Result<Self> {
        let key = hex::encode(key.as_slice());
        let (tenant, snapshot) = (owner.tenant.clone(), owner.snapshot.clone());
        let (first, most) = (layer.first_id, file.most);
        let job = SealJob { tenant, snapshot, key, first, most, resume_spec };
        let text = Zeroizing::new(serde_json::to_vec(&job)?);
        let memory = memfd_create("cofferdam-seal", MemfdFlags::CLOEXEC)?;
        let mut memory = File::from(memory);
        memory.write_all(&text)?;
        Ok(Self { job: memory.into(), layer: layer.dir, file: file.file })
    }
}

#[cfg(test)]
impl SealInput {
    /// Of no layer.
    pub(crate) fn of_nothing() -> Self {
        let nothing = || OwnedFd::from(File::open("/dev/null").unwrap());
        Self { job: nothing(), layer: nothing(), file: nothing() }
    }
}
