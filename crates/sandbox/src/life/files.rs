//! What the tasks of a sandbox leave: declared files, and changes below copy-on-write directories.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cofferdam_ambient::clock::Stopwatch;
use cofferdam_contracts::sandbox::{MAX_COLLECT_BYTES, MAX_COLLECT_FILES};
use cofferdam_guest::wire::CollectRequest;

use crate::agent::changes::{self, Changes, ChangesError, UpperLocation};
use crate::agent::gitignore::{self, GitIgnore};
use crate::agent::{
    Agent, AgentError, CollectedFile, Collection, CollectionItem, CollectionStream,
};
use crate::host::task::blocking;
use crate::life::error::SandboxError;

/// A collection into memory reads at most 64 MiB and 500,000 directory entries.
const COLLECT_MS: u64 = 120_000;
/// A larger one has more time: it is read at 8 MB/s at least, also where the store is a slow disk.
const LEAST_BYTES_PER_MS: u64 = 8_000;

/// Reads out what a task leaves, while its sandbox runs.
#[derive(Debug, Clone, Copy)]
pub struct SandboxFiles<'a> {
    pub(super) agent: &'a Agent,
    pub(super) killed: &'a AtomicBool,
    pub(super) trees: &'a [(String, UpperLocation)],
}

/// What one collection reads at most; more is an error, because a part would look like the whole.
#[derive(Debug, Clone, Copy)]
pub struct CollectBounds {
    /// Of all files together.
    pub bytes: u64,
    /// How many regular files.
    pub files: u64,
}

/// The files that a task declared, as they come. Dropping it ends the collection.
#[derive(Debug)]
pub struct SandboxCollection<'a> {
    files: SandboxFiles<'a>,
    stream: CollectionStream,
    begun: Stopwatch,
    /// Milliseconds for all of it, the reader's own time included: an agent that is slow holds its sandbox no longer.
    limit_ms: u64,
}

impl SandboxCollection<'_> {
    /// The next of it; nothing follows an end or an error.
    pub async fn next(&mut self) -> Result<CollectionItem, SandboxError> {
        let left = Duration::from_millis(self.limit_ms).saturating_sub(self.begun.elapsed());
        let asked = tokio::time::timeout(left, self.stream.next()).await;
        self.files.answered(asked, self.limit_ms)
    }
}

impl Default for CollectBounds {
    /// What is collected into memory at most: 1,000 files and 64 MiB.
    fn default() -> Self {
        let files = u64::try_from(MAX_COLLECT_FILES).unwrap_or(u64::MAX);
        Self { bytes: MAX_COLLECT_BYTES, files }
    }
}

impl<'a> SandboxFiles<'a> {
    /// Reads the regular files below `root` whose relative path matches a glob, in the order of
    /// their paths, never through a symbolic link.
    pub async fn collect(
        self,
        root: &str,
        globs: &[String],
    ) -> Result<Vec<CollectedFile>, SandboxError> {
        self.collect_at_most(root, globs, CollectBounds::default()).await
    }

    /// The same within bounds of the caller's.
    pub async fn collect_at_most(
        self,
        root: &str,
        globs: &[String],
        bounds: CollectBounds,
    ) -> Result<Vec<CollectedFile>, SandboxError> {
        let CollectBounds { bytes: max_bytes, files: max_files } = bounds;
        let (root, globs) = (root.to_owned(), globs.to_vec());
        let request = CollectRequest { root, globs, max_bytes, max_files, exact: false };
        self.collected(&request).await.map(|collection| collection.files)
    }

    /// Reads out what a task declared, as it comes: regular files with their execute bits, symbolic links as such, and empty
    /// directories. What is beyond the bounds is counted, and what fits is there.
    pub async fn collect_declared(
        self,
        root: &str,
        globs: Vec<String>,
        bounds: CollectBounds,
    ) -> Result<SandboxCollection<'a>, SandboxError> {
        let CollectBounds { bytes: max_bytes, files: max_files } = bounds;
        let root = root.to_owned();
        let request = CollectRequest { root, globs, max_bytes, max_files, exact: true };
        let more = max_bytes.checked_div(LEAST_BYTES_PER_MS).unwrap_or(0);
        let limit_ms = COLLECT_MS.saturating_add(more);
        let begun = Stopwatch::start();
        let limit = Duration::from_millis(limit_ms);
        let asked = tokio::time::timeout(limit, self.agent.collect_stream(&request)).await;
        let stream = self.answered(asked, limit_ms)?;
        Ok(SandboxCollection { files: self, stream, begun, limit_ms })
    }

    async fn collected(self, request: &CollectRequest) -> Result<Collection, SandboxError> {
        let limit = Duration::from_millis(COLLECT_MS);
        let asked = tokio::time::timeout(limit, self.agent.collect(request)).await;
        self.answered(asked, COLLECT_MS)
    }

    /// What an agent answered in time, or why it did not.
    fn answered<T>(
        self,
        asked: Result<Result<T, AgentError>, tokio::time::error::Elapsed>,
        limit_ms: u64,
    ) -> Result<T, SandboxError> {
        match asked {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(AgentError::Excess(excess))) => Err(SandboxError::Excess(excess)),
            Ok(Err(_)) if self.killed.load(Ordering::Acquire) => Err(SandboxError::Killed),
            Ok(Err(error)) => Err(error.into()),
            Err(_) => Err(SandboxError::Silent(limit_ms)),
        }
    }

    /// What was changed below a directory that it sees copy-on-write, without what its `.gitignore` names; nothing
    /// where there is none.
    /// To be asked when no command runs.
    pub async fn changes(self, target: &str) -> Result<Changes, ChangesError> {
        let tree = self.trees.iter().find(|(at, _)| at == target).map(|(_, place)| place.clone());
        // As it is now: an agent that ignores a directory has said so itself.
        let rules =
            self.agent.files().read(&format!("{target}/.gitignore"), gitignore::MAX_BYTES).await;
        let rules = rules.map(|bytes| GitIgnore::parse(&String::from_utf8_lossy(&bytes)));
        let rules = rules.unwrap_or_default();
        match tree {
            Some(UpperLocation::Host { upper, merged }) => {
                blocking(move || changes::below(&upper, &merged, &rules)).await
            }
            Some(UpperLocation::Inside(shown)) => {
                let told = changes::inside(self.agent, target, &shown, &rules);
                let told = tokio::time::timeout(Duration::from_millis(COLLECT_MS), told).await;
                told.unwrap_or(Err(ChangesError::Silent))
            }
            None => Ok(Changes::default()),
        }
    }
}
