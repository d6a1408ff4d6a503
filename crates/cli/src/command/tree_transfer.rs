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
use cofferdam_ambient::clock;
use cofferdam_contracts::config::{ConfigEntry, ConfigKey};
use cofferdam_contracts::error::ErrorCode;
use cofferdam_contracts::id::Digest;
use cofferdam_contracts::tree_manifest::ManifestBounds;
use cofferdam_contracts::tree_upload::{
    self, FileGap, FilePiece, MAX_PIECE_BYTES, TreeUpload, UploadReceipt, UploadState,
};
use futures_util::{StreamExt as _, stream};
use serde::Serialize;
use serde_json::{Map, Value};

use super::client::{ApiRefusal, Client};
use super::exit::{Misuse, Negative};
use super::file_transfer::byte_count;
use super::local_tree::{LocalFault, LocalTree, ReadCount};
use super::progress::transfer::TransferScreen;

/// Bodies that are on their way at once: a distant server answers one while the next ones travel.
const AT_ONCE: usize = 4;
/// Tries without a byte of progress between them: a minute, in which a server starts again.
const MAX_TRIES: u32 = 12;
/// The longest time between two tries.
const MAX_PAUSE: Duration = Duration::from_secs(8);
/// Between two looks at how far a directory is read.
const LOOKS: Duration = Duration::from_millis(100);

/// The directory that an input means; `None`: a text. A text that begins so is written with another `@` before it. Pure.
fn directory_of(text: &str) -> Option<&Path> {
    let path = text.strip_prefix('@')?;
    path.starts_with(['.', '/']).then(|| Path::new(path))
}

/// Refuses inputs that name a directory that is not there.
pub(crate) fn check(inputs: &Map<String, Value>) -> Result<(), Misuse> {
    for (name, value) in inputs {
        let text = value.as_str().unwrap_or_default();
        if let Some(below) = text.strip_prefix("@~/") {
            return Err(Misuse(format!(
                "-i {name}: a shell leaves `~` as it is there: write -i {name}=@$HOME/{below}"
            )));
        }
        let dir = directory_of(text);
        if let Some(dir) = dir.filter(|dir| !dir.is_dir()) {
            return Err(Misuse(format!(
                "-i {name}: {dir:?} is not a directory: `@` sends one; write `@@` for a text that begins with `@`"
            )));
        }
    }
    Ok(())
}

/// How a transfer is shown.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TransferOptions {
    /// The caller wants one JSON object.
    pub quiet: bool,
    /// The caller asks for plain lines.
    pub no_progress: bool,
}

/// A directory that the server has now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct TreeReceipt {
    /// The input that names it.
    pub input: String,
    pub tree: Digest,
    /// Files, directories and links.
    pub entries: usize,
    /// Bytes of its files.
    pub bytes: u64,
    /// Bytes that the server lacked.
    pub sent_bytes: u64,
}

/// The inputs with what names the directories that were sent in their places.
pub(crate) async fn sent(
    client: &Client,
    mut inputs: Map<String, Value>,
    options: TransferOptions,
) -> anyhow::Result<(Map<String, Value>, Vec<TreeReceipt>)> {
    let mut all = Vec::new();
    for (input, value) in &mut inputs {
        let Some(text) = value.as_str() else { continue };
        if let Some(dir) = directory_of(text) {
            let sent = send(client, input, dir, options).await?;
            *value = Value::String(tree_upload::input_of(&sent.tree));
            all.push(sent);
        } else if text.starts_with("@@.") || text.starts_with("@@/") {
            *value = Value::String(text.get(1..).unwrap_or_default().to_owned());
        }
    }
    Ok((inputs, all))
}

async fn send(
    client: &Client,
    input: &str,
    said: &Path,
    options: TransferOptions,
) -> anyhow::Result<TreeReceipt> {
    let shown = said.display().to_string();
    let dir = said.canonicalize().with_context(|| format!("cannot read {said:?}"))?;
    let bounds = bounds(client).await?;
    let screen = TransferScreen::new(&dir, options.quiet, options.no_progress);
    let tree = read(dir, bounds, &screen).await?;
    let transfer = TreeTransfer {
        client: client.clone(),
        path: format!("/api/trees/{}", tree.tree),
        tree: Arc::new(tree),
        screen,
        bytes: AtomicU64::default(),
        of: AtomicU64::default(),
    };
    let was_whole = transfer.send().await.map_err(|error| {
        let again = "the command, run again, goes on where it stopped";
        match is_final(&error) {
            true => error,
            false => error.context(format!("{shown} was not sent whole; {again}")),
        }
    })?;
    let (tree, sent_bytes) = (&transfer.tree, transfer.bytes.load(Ordering::Relaxed));
    let size = format!("{} entries, {}", tree.entries, byte_count(tree.bytes));
    transfer.screen.note(&match was_whole {
        true => format!("{shown} ({size}): the server has all of it, nothing was sent"),
        false => format!("sent {shown} ({size}); the server lacked {}", byte_count(sent_bytes)),
    });
    if tree.left_out > 0 {
        let left_out = tree.left_out;
        transfer.screen.note(&format!("{left_out} sockets, pipes and devices were left out"));
    }
    let (entries, bytes) = (tree.entries, tree.bytes);
    Ok(TreeReceipt { input: input.to_owned(), tree: tree.tree.clone(), entries, bytes, sent_bytes })
}

/// Reads a directory and shows how far that is.
async fn read(
    dir: PathBuf,
    bounds: ManifestBounds,
    screen: &TransferScreen,
) -> anyhow::Result<LocalTree> {
    let count = Arc::new(ReadCount::default());
    let counted = Arc::clone(&count);
    let mut read = tokio::task::spawn_blocking(move || LocalTree::read(&dir, bounds, &counted));
    loop {
        tokio::select! {
            read = &mut read => return read.context("the directory was not read")?,
            () = clock::sleep(LOOKS) => {}
        }
        let [files, bytes] = [&count.files, &count.bytes].map(|n| n.load(Ordering::Relaxed));
        screen.reading(files, bytes);
    }
}

/// Whether the next try would end as this one did.
fn is_final(error: &anyhow::Error) -> bool {
    let refusal = error.downcast_ref::<ApiRefusal>();
    error.is::<LocalFault>()
        || refusal.is_some_and(|refusal| refusal.code != ErrorCode::Unavailable)
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
    screen: TransferScreen,
    /// Bytes of files that arrived.
    bytes: AtomicU64,
    /// Those and what lacks.
    of: AtomicU64,
}

impl TreeTransfer {
    /// Sends until the server has everything; whether it had before.
    async fn send(&self) -> anyhow::Result<bool> {
        let (mut tries, mut before, mut rounds) = (0, None, 0_u64);
        loop {
            let failure = match self.round().await {
                Ok(true) => return Ok(rounds == 0),
                Ok(false) => None,
                Err(error) => {
                    let error = self.explained(error);
                    if is_final(&error) {
                        return Err(error);
                    }
                    Some(error)
                }
            };
            rounds += 1;
            let bytes = Some(self.bytes.load(Ordering::Relaxed));
            tries = if before == bytes { tries + 1 } else { 0 };
            before = bytes;
            if tries >= MAX_TRIES {
                let still = || anyhow::anyhow!("the server lacks files after {MAX_TRIES} tries");
                return Err(failure.unwrap_or_else(still));
            }
            if failure.is_some() {
                self.screen.waiting();
                clock::sleep(Duration::from_millis(250 << tries).min(MAX_PAUSE)).await;
            }
        }
    }

    /// A file that the server took for another, by its path.
    fn explained(&self, error: anyhow::Error) -> anyhow::Error {
        let details = error.downcast_ref::<ApiRefusal>().and_then(|it| it.details.as_ref());
        let named = details.and_then(|details| details.get("sha256")?.as_str());
        let changed = named.and_then(|named| self.tree.changed(&Digest::parse(named).ok()?));
        changed.map_or(error, Into::into)
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
        let arrived = self.bytes.load(Ordering::Relaxed);
        self.of.store(arrived.saturating_add(seen.lacking_bytes), Ordering::Relaxed);
        self.screen.sending(arrived, self.of.load(Ordering::Relaxed));
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
        let arrived =
            self.bytes.fetch_add(sent.bytes, Ordering::Relaxed).saturating_add(sent.bytes);
        self.screen.sending(arrived, self.of.load(Ordering::Relaxed).max(arrived));
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
        let home = json!({"a": "@~/src"});
        let refused = check(home.as_object().unwrap()).unwrap_err().0;
        assert!(refused.ends_with("-i a=@$HOME/src"), "{refused}");
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
