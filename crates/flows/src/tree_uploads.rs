//! Directories that clients send to this server: taken, looked at, bound for runs.
//!
//! They lie in the state directory of the process that serves the API. A run that names one is bound to a copy there, as to one of a
//! host's own directory, and every worker of that host can give it.

use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use cofferdam_contracts::config::{ConfigKey, lower_of_both};
use cofferdam_contracts::error::{ErrorCode, Refusal};
use cofferdam_contracts::id::{Digest, TenantId};
use cofferdam_contracts::retention::StoredBytes;
use cofferdam_contracts::tree_upload::{self, TreeUpload, UploadReceipt, UploadState};
use cofferdam_ledger::Ledger;
use cofferdam_ledger::trees::IntentTree;
use cofferdam_sandbox::{
    BoundTree, ManifestPiece, TreeBounds, TreeError, TreeStore, TreeUploads, UploadBounds,
    UploadError,
};
use serde_json::json;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit};

use crate::error::{Error, Result};
use crate::host::host_id;
use crate::key_slots::KeySlots;

/// Directories that are read at once: one has all processors, and another may wait for its disk.
pub(crate) static BINDINGS: Semaphore = Semaphore::const_new(4);
/// A tenant's directories change one at a time: a file is never written while it becomes part of a copy.
static TENANTS: LazyLock<KeySlots<TenantId>> = LazyLock::new(|| KeySlots::of(1));
/// How long a request waits for the tenant's others.
const PATIENCE: Duration = Duration::from_secs(60);
/// A directory that was not used for a day is sent again: what is still here is not.
const MAX_IDLE: Duration = Duration::from_secs(24 * 3_600);
/// Whole directories of a tenant that are kept for the next one, which has most of their files.
const MAX_KEPT: usize = 32;

/// What clients send to this process.
#[derive(Debug, Clone)]
pub struct Uploads {
    ledger: Ledger,
    state_dir: Option<Arc<PathBuf>>,
}

/// Held until the work on the disk is over, whether or not its client still waits.
struct UploadTurn {
    _own: OwnedSemaphorePermit,
    /// Of all tenants, where a whole directory may be read.
    _binding: Option<SemaphorePermit<'static>>,
}

/// A part of a manifest, as a request brings it.
#[derive(Debug)]
pub struct ManifestPart {
    /// Position of its first byte in the manifest.
    pub at: u64,
    /// Bytes of the manifest from there on.
    pub bytes: Vec<u8>,
    /// Whether the manifest ends with it.
    pub is_last: bool,
}

impl Uploads {
    pub(crate) fn new(ledger: &Ledger, state_dir: Option<&Path>) -> Self {
        let state_dir = state_dir.map(|dir| Arc::new(dir.to_owned()));
        Self { ledger: ledger.clone(), state_dir }
    }

    /// Takes a part of a manifest. The last one is held against the tenant's bounds before a file is sent.
    ///
    /// # Errors
    /// `tree_invalid`, or `state_conflict` where a part before it lacks.
    pub async fn take_manifest(
        &self,
        tenant: &TenantId,
        tree: &Digest,
        part: ManifestPart,
    ) -> Result<TreeUpload> {
        let bounds = self.bounds(tenant).await?;
        let (named, part) = (tree.clone(), Arc::new(part));
        let take = move |uploads: &TreeUploads| {
            let ManifestPart { at, bytes, is_last } = &*part;
            let piece = ManifestPiece { at: *at, bytes, is_last: *is_last };
            uploads.take_manifest(&named, piece, bounds)
        };
        match self.on_disk(tenant, take.clone()).await {
            Err(UploadFailure::Upload(UploadError::Quota { .. } | UploadError::Open)) => {
                self.sweep(tenant).await?;
                self.on_disk(tenant, take).await?;
            }
            taken => taken?,
        }
        self.look(tenant, tree).await
    }

    /// How far a directory has come. One whose files are all here is bound on the way, so that a run finds its copy.
    ///
    /// # Errors
    /// `not_found`: nothing of it is here.
    pub async fn look(&self, tenant: &TenantId, tree: &Digest) -> Result<TreeUpload> {
        let look = || {
            let named = tree.clone();
            self.on_disk(tenant, move |uploads| uploads.look(&named))
        };
        let seen = look().await?;
        if seen.state != UploadState::Whole {
            return Ok(seen);
        }
        match self.copy(tenant, tree).await {
            Ok(_) => Ok(seen),
            Err(UploadFailure::Upload(UploadError::Lacking { .. })) => Ok(look().await?),
            Err(failure) => Err(failure.into()),
        }
    }

    /// Takes a body of files.
    ///
    /// # Errors
    /// `tree_invalid`, or `state_conflict` where bytes before a part lack.
    pub async fn take_files(
        &self,
        tenant: &TenantId,
        tree: &Digest,
        body: Vec<u8>,
    ) -> Result<UploadReceipt> {
        let named = tree.clone();
        let taken = self.on_disk(tenant, move |uploads| {
            let Some(pieces) = tree_upload::pieces(&body) else { return Ok(None) };
            let bytes = pieces.iter().map(|piece| piece.bytes.len()).sum::<usize>();
            let files = uploads.take_files(&named, &pieces)?;
            Ok(Some(UploadReceipt { files, bytes: u64::try_from(bytes).unwrap_or(u64::MAX) }))
        });
        taken.await?.ok_or_else(|| {
            let why = "the body is not a list of files: each is a line `SHA256 FROM LENGTH` and its bytes";
            Refusal::new(ErrorCode::TreeInvalid, why).into()
        })
    }

    /// Binds a directory for a run.
    ///
    /// # Errors
    /// It is not whole here.
    pub(crate) async fn bind(
        &self,
        tenant: &TenantId,
        tree: &Digest,
    ) -> Result<IntentTree, Refusal> {
        let state_dir = self.dir()?.to_string_lossy().into_owned();
        let bound = self.copy(tenant, tree).await.map_err(Refusal::from)?;
        Ok(IntentTree {
            source: tree_upload::input_of(tree),
            sha256: bound.digest,
            copy: bound.copy,
            host_id: host_id(),
            state_dir,
            entries: i64::try_from(bound.entries).unwrap_or(i64::MAX),
            bytes: i64::try_from(bound.bytes).unwrap_or(i64::MAX),
            is_host_admins: false,
        })
    }

    /// The copy of a directory that was sent to this state directory.
    async fn copy(&self, tenant: &TenantId, tree: &Digest) -> Result<BoundTree, UploadFailure> {
        let (named, turn) = (tree.clone(), self.turn(tenant).await?);
        // It may read every byte of it.
        let turn = UploadTurn { _binding: BINDINGS.acquire().await.ok(), ..turn };
        let bind = move |uploads: &TreeUploads| uploads.bind(&named, TreeBounds::default());
        self.in_turn(tenant, turn, bind).await
    }

    /// Removes what no client came back to and no copy has, of every tenant.
    pub(crate) async fn sweep_all(&self) -> std::io::Result<()> {
        let Some(dir) = self.state_dir() else { return Ok(()) };
        let store = TreeStore::of(dir);
        let swept = tokio::task::spawn_blocking(move || {
            let all = TreeUploads::all_of(&store)?;
            all.iter().try_for_each(|uploads| uploads.sweep(MAX_IDLE, MAX_KEPT))
        });
        swept.await.unwrap_or_else(|lost| Err(std::io::Error::other(lost)))
    }

    async fn sweep(&self, tenant: &TenantId) -> Result<(), UploadFailure> {
        self.on_disk(tenant, |uploads| Ok(uploads.sweep(MAX_IDLE, MAX_KEPT)?)).await
    }

    /// What each of these tenants sent to this process, in their order.
    ///
    /// # Errors
    /// The state directory cannot be read.
    pub(crate) async fn usage(&self, tenants: Vec<TenantId>) -> Result<Vec<StoredBytes>> {
        let Some(dir) = self.state_dir.clone() else {
            return Ok(vec![StoredBytes::default(); tenants.len()]);
        };
        let read = move || {
            let usage = tenants.iter().map(|tenant| TreeUploads::of(&dir, tenant).usage());
            usage.collect::<std::io::Result<Vec<StoredBytes>>>()
        };
        tokio::task::spawn_blocking(read).await?.map_err(|cause| {
            tracing::warn!(%cause, "the sent directories could not be looked through");
            let why = "the server cannot read the directories that clients sent to it: its log has the cause";
            Refusal::new(ErrorCode::Unavailable, why).into()
        })
    }

    pub(crate) fn state_dir(&self) -> Option<&Path> {
        self.state_dir.as_deref().map(PathBuf::as_path)
    }

    pub(crate) fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    pub(crate) async fn bounds(&self, tenant: &TenantId) -> Result<UploadBounds> {
        const MIB: u64 = 1024 * 1024;
        let rows = self.ledger.config().rows(tenant).await?;
        let entries = lower_of_both(ConfigKey::TreeEntries, &rows);
        Ok(UploadBounds {
            tree: TreeBounds {
                entries: usize::try_from(entries).unwrap_or(usize::MAX),
                bytes: lower_of_both(ConfigKey::TreeMb, &rows).saturating_mul(MIB),
            },
            quota: lower_of_both(ConfigKey::TreesQuota, &rows).saturating_mul(MIB),
        })
    }

    fn dir(&self) -> Result<&Path, Refusal> {
        self.state_dir().ok_or_else(|| {
            Refusal::new(
                ErrorCode::WrongServer,
                "this server takes no directories: ask another one",
            )
        })
    }

    /// Does something with the tenant's directory, beside the runtime's own threads and after the tenant's other requests.
    async fn on_disk<T: Send + 'static>(
        &self,
        tenant: &TenantId,
        work: impl FnOnce(&TreeUploads) -> Result<T, UploadError> + Send + 'static,
    ) -> Result<T, UploadFailure> {
        let turn = self.turn(tenant).await?;
        self.in_turn(tenant, turn, work).await
    }

    async fn turn(&self, tenant: &TenantId) -> Result<UploadTurn, UploadFailure> {
        let Some(own) = TENANTS.take(tenant, PATIENCE).await else {
            let why = "other directories of the tenant are being taken: try again in a minute";
            return Err(Refusal::new(ErrorCode::Unavailable, why).into());
        };
        Ok(UploadTurn { _own: own, _binding: None })
    }

    async fn in_turn<T: Send + 'static>(
        &self,
        tenant: &TenantId,
        turn: UploadTurn,
        work: impl FnOnce(&TreeUploads) -> Result<T, UploadError> + Send + 'static,
    ) -> Result<T, UploadFailure> {
        let uploads = TreeUploads::of(self.dir()?, tenant);
        let done = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            work(&uploads)
        });
        let done = done.await.map_err(|lost| UploadError::from(std::io::Error::other(lost)))?;
        Ok(done?)
    }
}

/// Why something is not done with a sent directory.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UploadFailure {
    /// Not by this process, or not now.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// Of the directory itself, or of the disk.
    #[error(transparent)]
    Upload(#[from] UploadError),
}

fn code_of(error: &UploadError) -> ErrorCode {
    match error {
        UploadError::Unknown(_) => ErrorCode::NotFound,
        UploadError::Order(_) | UploadError::Lacking { .. } => ErrorCode::StateConflict,
        UploadError::Room | UploadError::Io(_) => ErrorCode::Unavailable,
        UploadError::Tree(error) if !error.is_permanent() => ErrorCode::Unavailable,
        UploadError::Other(_)
        | UploadError::Unnamed(_)
        | UploadError::Manifest(_)
        | UploadError::Long
        | UploadError::Quota { .. }
        | UploadError::Open
        | UploadError::Tree(_) => ErrorCode::TreeInvalid,
    }
}

impl From<UploadFailure> for Refusal {
    fn from(failure: UploadFailure) -> Self {
        let error = match failure {
            UploadFailure::Refused(refusal) => return refusal,
            UploadFailure::Upload(error) => error,
        };
        let code = code_of(&error);
        match &error {
            UploadError::Io(cause) | UploadError::Tree(TreeError::Io { source: cause, .. }) => {
                // The caller learns no path of this host.
                tracing::warn!(%cause, "a sent directory could not be stored");
                Self::new(code, "the server could not store it: try again")
            }
            UploadError::Manifest(fault) => {
                Self::new(code, error.to_string()).with(json!({"entry": fault.entry}))
            }
            UploadError::Unnamed(file) | UploadError::Other(file) => {
                Self::new(code, error.to_string()).with(json!({"sha256": file}))
            }
            _ => Self::new(code, error.to_string()),
        }
    }
}

impl From<UploadFailure> for Error {
    fn from(failure: UploadFailure) -> Self {
        Self::Refused(failure.into())
    }
}
