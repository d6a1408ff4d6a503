//! What the database and the disk of a state directory do not share: rows whose file is missing, files that no row knows.
//!
//! ```text
//! row, its file at another location -> the row names this location
//! row, no file                      -> at a start: `missing_at`, which `prove` reports; by `adopt`: given up, and who was paused into it has ended
//! file, no row                      -> set aside in `unknown/`; back once a row knows it; removed after two weeks
//! ```
//! A start gives up nothing: a disk may not be mounted yet.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use cofferdam_ambient::clock;
use cofferdam_contracts::id::SnapshotId;
use cofferdam_flows::Result;
use cofferdam_ledger::stored_files::{StoredFileRow, StoredFileTable};

use crate::background::blocking;
use crate::refusal::conflict;
use crate::snapshot::snapshots::Snapshots;
use crate::snapshot::store::{FileUser, SnapshotStore};

/// How long a file that no row knows is kept: a database that was restored to the wrong time is noticed before.
const ASIDE_S: i64 = 14 * 24 * 3_600;
/// The end of a sandbox whose kept files are gone.
const MISSING: &str =
    "its kept files are missing on this host, and were given up by `cofferdam adopt`";

/// Who looks, and so what becomes of a row without a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Comparison {
    /// A worker that starts: rows are marked.
    Start,
    /// An operator who adopts a state directory: its original is gone, and so are they.
    Adoption,
}

/// What was found to differ.
#[derive(Debug, Default)]
pub struct StoreComparison {
    /// Rows that named another location than their files'.
    pub moved: i64,
    /// Rows whose file is missing, and whether they were given up.
    pub missing: Vec<(StoredFileRow, bool)>,
    /// Where files that no row knows are now.
    pub unknown: Vec<PathBuf>,
}

impl Snapshots {
    /// Compares what is on record as kept here with what is on the disk.
    ///
    /// # Errors
    /// The ledger or the directory cannot be read.
    pub async fn compared(&self, look: Comparison) -> Result<StoreComparison> {
        let mut all = StoreComparison::default();
        for (store, table) in [
            (&self.live.0.store, StoredFileTable::Snapshots),
            (&self.live.0.uploads, StoredFileTable::Uploads),
        ] {
            self.store_comparison(store, table, look, &mut all).await?;
        }
        Ok(all)
    }

    async fn store_comparison(
        &self,
        store: &Arc<SnapshotStore>,
        table: StoredFileTable,
        look: Comparison,
        all: &mut StoreComparison,
    ) -> Result<()> {
        let (rows, place) = (self.live.0.ledger.stored_files(table), store.place());
        let files = on(store, SnapshotStore::whole).await?;
        if look == Comparison::Adoption {
            let found = [files.clone(), on(store, SnapshotStore::left).await?].concat();
            all.moved = all.moved.saturating_add(rows.set_location(&place, &found).await?);
        }
        for row in rows.stored_at(&place).await? {
            let id = row.id.clone();
            let is_missing = !files.contains(&id) && on(store, move |s| s.is_missing(&id)).await?;
            match (is_missing, look) {
                (false, _) if !row.is_missing => {}
                (true, Comparison::Adoption) => {
                    let given_up = rows.record_loss(&row.id, MISSING).await?;
                    all.missing.push((row, given_up));
                }
                _ => {
                    rows.looked_for(&row.id, is_missing).await?;
                    if is_missing {
                        tracing::error!(file = %row.id, kind = row.kind, of = row.of, "a kept file is missing");
                        all.missing.push((row, false));
                    }
                }
            }
        }
        for id in rows.unknown(&files).await? {
            let kept = on(store, move |s| s.unknown().put(&id)).await?;
            tracing::warn!(file = %kept.display(), "a file that no row knows is set aside");
            all.unknown.push(kept);
        }
        let now_s = clock::now_ms().saturating_div(1_000);
        on(store, move |s| s.unknown().age(now_s, ASIDE_S)).await
    }
}

impl SnapshotStore {
    /// Whether a row's file is nowhere; one that was set aside is taken back.
    fn is_missing(&self, id: &SnapshotId) -> io::Result<bool> {
        Ok(self.user(id) == FileUser::NoFile && !self.unknown().take_back(id)?)
    }
}

/// Why a kept file cannot be opened, for its tenant; the operator's log has the rest.
pub(crate) fn unopened(why: &io::Error) -> &'static str {
    match why.kind() {
        io::ErrorKind::NotFound => "its file is missing on this host",
        io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof => "its file is damaged",
        _ => "its file cannot be read",
    }
}

/// Looks at the directory. Blocking work beside the runtime's threads.
async fn on<T: Send + 'static>(
    store: &Arc<SnapshotStore>,
    look: impl FnOnce(&SnapshotStore) -> io::Result<T> + Send + 'static,
) -> Result<T> {
    let store = Arc::clone(store);
    let looked = blocking(move || look(&store)).await;
    looked.map_err(|why| conflict(format!("the directory of kept files: {why}")))
}
