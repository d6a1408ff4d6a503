//! `-i NAME=@DIR`: a directory of this host is sent to the server, and the input names it.
//!
//! ```text
//! @DIR --read--> manifest --what lacks?--> files of at most 2 MiB a body, four bodies at once --whole--> NAME=tree:SHA256
//! ```
//! A connection that breaks is made again, and what arrived is not sent twice: the server says what lacks.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Context;
use cofferdam_ambient::clock::{self, Stopwatch};
use cofferdam_contracts::config::{ConfigEntry, ConfigKey};
use cofferdam_contracts::tree_manifest::ManifestBounds;
use cofferdam_contracts::tree_upload::{
    self, FileGap, FilePiece, MAX_PIECE_BYTES, TreeUpload, UploadReceipt, UploadState,
};
use futures_util::{StreamExt as _, stream};
use serde_json::{Map, Value};

use super::client::{ApiRefusal, Client};
use super::exit::{Misuse, Negative};
use super::file_transfer::byte_count;
use super::local_tree::LocalTree;
use super::output;

/// Bodies that are on their way at once: a distant server answers one while the next ones travel.
const AT_ONCE: usize = 4;
/// Tries without a byte of progress between them.
const MAX_TRIES: u32 = 6;
/// Between two lines of progress.
const SHOWN_MS: u64 = 200;

/// The directory that an input means; `None`: a text. A text that begins so is written with another `@` before it. Pure.
fn directory_of(text: &str) -> Option<&Path> {
    let path = text.strip_prefix('@')?;
    path.starts_with(['.', '/']).then(|| Path::new(path))
}

/// Refuses inputs that name a directory that is not there.
pub(crate) fn check(inputs: &Map<String, Value>) -> Result<(), Misuse> {
    for (name, value) in inputs {
        let dir = value.as_str().and_then(directory_of);
        if let Some(dir) = dir.filter(|dir| !dir.is_dir()) {
            return Err(Misuse(format!(
                "-i {name}: {dir:?} is not a directory: `@` sends one; write `@@` for a text that begins with `@`"
            )));
        }
    }
    Ok(())
}

/// The inputs with what names the directories that were sent in their places.
pub(crate) async fn sent(
    client: &Client,
    mut inputs: Map<String, Value>,
) -> anyhow::Result<Map<String, Value>> {
    for value in inputs.values_mut() {
        let Some(text) = value.as_str() else { continue };
        if let Some(dir) = directory_of(text) {
            let dir = dir.canonicalize().with_context(|| format!("cannot read {dir:?}"))?;
            *value = Value::String(send(client, dir).await?);
        } else if text.starts_with("@@.") || text.starts_with("@@/") {
            *value = Value::String(text.get(1..).unwrap_or_default().to_owned());
        }
    }
    Ok(inputs)
}

async fn send(client: &Client, dir: PathBuf) -> anyhow::Result<String> {
    let bounds = bounds(client).await?;
    let shown = dir.display().to_string();
    let read = tokio::task::spawn_blocking(move || LocalTree::read(&dir, bounds));
    let tree = read.await.context("the directory was not read")??;
    let transfer = TreeTransfer {
        client: client.clone(),
        path: format!("/api/trees/{}", tree.tree),
        tree: Arc::new(tree),
        progress: UploadProgress::new(),
    };
    let sent = transfer.send().await;
    output::progress("");
    let tree = &transfer.tree;
    if let Err(error) = sent {
        let again = "the command, run again, goes on where it stopped";
        return Err(match error.is::<ApiRefusal>() {
            true => error,
            false => error.context(format!("{shown} was not sent whole; {again}")),
        });
    }
    let (entries, bytes) = (tree.entries, byte_count(tree.bytes));
    let new = byte_count(transfer.progress.bytes.load(Ordering::Relaxed));
    output::note(&format!(
        "sent {shown}: {entries} entries, {bytes}, of which the server lacked {new}"
    ));
    if tree.left_out > 0 {
        output::note(&format!("{} sockets, pipes and devices were left out", tree.left_out));
    }
    Ok(tree_upload::input_of(&tree.tree))
}

/// What the server takes of this tenant.
async fn bounds(client: &Client) -> anyhow::Result<ManifestBounds> {
    let number = async |key: ConfigKey| -> anyhow::Result<u64> {
        let entry: ConfigEntry = client.get(&format!("/api/config/{key}")).await?;
        entry.value.as_u64().context("the server's bound is not a number")
    };
    let (entries, mib) = (number(ConfigKey::TreeEntries).await?, number(ConfigKey::TreeMb).await?);
    let entries = usize::try_from(entries).unwrap_or(usize::MAX);
    Ok(ManifestBounds { entries, bytes: mib.saturating_mul(1024 * 1024) })
}

/// A directory on its way.
struct TreeTransfer {
    client: Client,
    path: String,
    tree: Arc<LocalTree>,
    progress: UploadProgress,
}

impl TreeTransfer {
    /// Sends until the server has everything.
    async fn send(&self) -> anyhow::Result<()> {
        let (mut tries, mut before) = (0, None);
        loop {
            let failure = match self.round().await {
                Ok(true) => return Ok(()),
                Ok(false) => None,
                // What the server refuses it would refuse again.
                Err(error) if error.is::<ApiRefusal>() => return Err(error),
                Err(error) => Some(error),
            };
            let bytes = Some(self.progress.bytes.load(Ordering::Relaxed));
            tries = if before == bytes { tries + 1 } else { 0 };
            before = bytes;
            if tries >= MAX_TRIES {
                let still = || anyhow::anyhow!("the server lacks files after {MAX_TRIES} tries");
                return Err(failure.unwrap_or_else(still));
            }
            if failure.is_some() {
                clock::sleep(Duration::from_millis(250 << tries)).await;
            }
        }
    }

    /// Asks what lacks and sends that; whether nothing lacked.
    async fn round(&self) -> anyhow::Result<bool> {
        let seen = match self.client.get::<TreeUpload>(&self.path).await {
            Err(error) if error.is::<Negative>() => None,
            seen => Some(seen?),
        };
        let seen = match seen {
            Some(seen) if seen.state != UploadState::Manifest => seen,
            started => self.manifest(started.map_or(0, |seen| seen.manifest_bytes)).await?,
        };
        if seen.state == UploadState::Whole {
            return Ok(true);
        }
        self.progress.lacking(seen.lacking_bytes);
        let bodies = stream::iter(loads(seen.gaps)).map(|load| self.load(load));
        let mut bodies = bodies.buffer_unordered(AT_ONCE);
        while let Some(sent) = bodies.next().await {
            sent?;
        }
        Ok(false)
    }

    async fn manifest(&self, from: u64) -> anyhow::Result<TreeUpload> {
        let manifest = &self.tree.manifest;
        let mut at = usize::try_from(from).unwrap_or(0).min(manifest.len().saturating_sub(1));
        loop {
            let end = at.saturating_add(MAX_PIECE_BYTES).min(manifest.len());
            let piece = manifest.get(at..end).unwrap_or_default().to_vec();
            let path = format!("{}/manifest?at={at}&end={}", self.path, end == manifest.len());
            let seen: TreeUpload = self.client.put_bytes(&path, piece).await?;
            if seen.state != UploadState::Manifest {
                return Ok(seen);
            }
            at = end;
        }
    }

    /// Sends a file in parts, or small ones together.
    async fn load(&self, load: Vec<FileGap>) -> anyhow::Result<()> {
        let path = format!("{}/files", self.path);
        let mut body = Vec::new();
        for gap in load {
            let mut from = gap.from;
            loop {
                let room = MAX_PIECE_BYTES.saturating_sub(body.len() + FilePiece::MAX_LINE);
                let left = usize::try_from(gap.size.saturating_sub(from)).unwrap_or(usize::MAX);
                let bytes = self.tree.part(&gap.sha256, from, room.min(left))?;
                let length = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
                if length == 0 && from < gap.size {
                    anyhow::bail!("a file became shorter while it was sent: run the command again");
                }
                FilePiece { sha256: gap.sha256.clone(), from, bytes: &bytes }.push(&mut body);
                from = from.saturating_add(length);
                if from >= gap.size {
                    break;
                }
                self.put(&path, &mut body).await?;
            }
        }
        self.put(&path, &mut body).await
    }

    async fn put(&self, path: &str, body: &mut Vec<u8>) -> anyhow::Result<()> {
        let sent: UploadReceipt = self.client.put_bytes(path, std::mem::take(body)).await?;
        self.progress.add(sent.bytes);
        Ok(())
    }
}

/// What is sent together: a large file alone, small ones in bodies. Pure.
fn loads(gaps: Vec<FileGap>) -> Vec<Vec<FileGap>> {
    let line = u64::try_from(FilePiece::MAX_LINE).unwrap_or(u64::MAX);
    let most = u64::try_from(MAX_PIECE_BYTES).unwrap_or(u64::MAX);
    let (mut loads, mut load, mut size) = (Vec::new(), Vec::new(), 0_u64);
    for gap in gaps {
        let of_gap = gap.size.saturating_sub(gap.from).saturating_add(line);
        if size.saturating_add(of_gap) > most && !load.is_empty() {
            loads.push(std::mem::take(&mut load));
            size = 0;
        }
        size = size.saturating_add(of_gap);
        load.push(gap);
    }
    if !load.is_empty() {
        loads.push(load);
    }
    loads
}

/// How far it is, on a terminal.
struct UploadProgress {
    bytes: AtomicU64,
    of: AtomicU64,
    since: Stopwatch,
    shown_ms: AtomicU64,
}

impl UploadProgress {
    fn new() -> Self {
        let zero = AtomicU64::default;
        Self { bytes: zero(), of: zero(), since: Stopwatch::start(), shown_ms: zero() }
    }

    fn lacking(&self, bytes: u64) {
        self.of.store(self.bytes.load(Ordering::Relaxed).saturating_add(bytes), Ordering::Relaxed);
    }

    fn add(&self, bytes: u64) {
        let done = self.bytes.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes);
        let now = self.since.elapsed_ms();
        if now.saturating_sub(self.shown_ms.load(Ordering::Relaxed)) >= SHOWN_MS {
            self.shown_ms.store(now, Ordering::Relaxed);
            let of = self.of.load(Ordering::Relaxed).max(done);
            output::progress(&format!("sending: {} of {}", byte_count(done), byte_count(of)));
        }
    }
}

#[cfg(test)]
mod tests {
    use cofferdam_contracts::canonical::digest_bytes;
    use serde_json::json;

    use super::*;

    #[test]
    fn an_input_names_a_directory_by_its_first_letters() {
        for (text, dir) in [
            ("@./a", Some("./a")),
            ("@/a", Some("/a")),
            ("@..", Some("..")),
            ("@me", None),
            ("@@./a", None),
            ("./a", None),
            ("@", None),
        ] {
            assert_eq!(directory_of(text), dir.map(Path::new), "{text}");
        }
        let inputs = json!({"a": "@./not-there", "b": "@me"});
        let refused = check(inputs.as_object().unwrap()).unwrap_err().0;
        assert!(refused.starts_with("-i a:"), "{refused}");
    }

    #[test]
    fn small_files_share_a_body_and_a_large_one_has_its_own() {
        let gap =
            |n: u64, size: u64| FileGap { sha256: digest_bytes(&n.to_be_bytes()), size, from: 0 };
        let mib = 1024 * 1024;
        let gaps = vec![gap(1, 0), gap(2, mib), gap(3, 7 * mib), gap(4, 10), gap(5, 10)];
        let sizes: Vec<Vec<u64>> =
            loads(gaps).iter().map(|load| load.iter().map(|gap| gap.size).collect()).collect();
        assert_eq!(sizes, [vec![0, mib], vec![7 * mib], vec![10, 10]]);
        assert!(loads(Vec::new()).is_empty());
    }
}
