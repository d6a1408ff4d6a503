//! A run's files on their way to a directory of this host.
//!
//! ```text
//! list (names, sizes, digests) -> destinations, all of them checked before one is written
//! tar, as it comes -> a file at a time -> its digest against the list's -> its name
//! ```
//! One request brings all of them, however many they are; what does not fit the list ends it.

use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt as _;

use anyhow::Context;
use bytes::{Buf, Bytes};
use cofferdam_ambient::clock::Stopwatch;
use cofferdam_contracts::canonical::digest_of;
use cofferdam_contracts::run_file::{RunFile, RunFiles};
use reqwest::Response;
use sha2::{Digest as _, Sha256};
use tar::Archive;
use tokio::sync::mpsc;

use super::destination::{Destination, DestinationKind, destinations};
use super::output;
use super::output_directory::OutputDirectory;

/// Pieces between the connection and the files.
const QUEUED: usize = 8;
/// Bytes of a file that are written at once.
const WRITE_BYTES: usize = 128 * 1024;
/// Between two lines of progress; none comes before.
const SHOWN_MS: u64 = 500;

/// What was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct TransferTotals {
    /// Files, links and empty directories.
    pub files: u64,
    pub bytes: u64,
    /// Links that lead out of the directory, which were not made.
    pub outward: u64,
}

/// Writes what a list names from an archive of the same files, each to its own of these places.
pub(crate) async fn unpack(
    answer: Response,
    found: RunFiles,
    all: Vec<Destination>,
    mut directory: OutputDirectory,
) -> anyhow::Result<TransferTotals> {
    let (sender, receiver) = mpsc::channel(QUEUED);
    let sending = tokio::spawn(send(answer, sender));
    let reader = PieceReader { receiver, piece: Bytes::new() };
    let writing =
        tokio::task::spawn_blocking(move || written(reader, &found.files, &all, &mut directory));
    let written = writing.await.context("the files were not written")?;
    sending.abort();
    written
}

/// Where each file of a list goes; the directory has no such names, unless they are replaced.
pub(crate) fn planned(
    found: &RunFiles,
    directory: &OutputDirectory,
) -> anyhow::Result<Vec<Destination>> {
    let all = destinations(&found.files, found.tasks)?;
    directory.check(&all)?;
    Ok(all)
}

async fn send(mut answer: Response, sender: mpsc::Sender<io::Result<Bytes>>) {
    loop {
        let piece = match answer.chunk().await {
            Ok(Some(piece)) => Ok(piece),
            Ok(None) => return,
            Err(error) => Err(io::Error::other(error)),
        };
        let is_last = piece.is_err();
        if sender.send(piece).await.is_err() || is_last {
            return;
        }
    }
}

/// What comes over a connection, for a reader that waits.
struct PieceReader {
    receiver: mpsc::Receiver<io::Result<Bytes>>,
    piece: Bytes,
}

impl Read for PieceReader {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        while self.piece.is_empty() {
            match self.receiver.blocking_recv() {
                Some(piece) => self.piece = piece?,
                None => return Ok(0),
            }
        }
        let count = self.piece.len().min(into.len());
        self.piece.copy_to_slice(into.get_mut(..count).unwrap_or_default());
        Ok(count)
    }
}

fn written(
    reader: impl Read,
    files: &[RunFile],
    all: &[Destination],
    directory: &mut OutputDirectory,
) -> anyhow::Result<TransferTotals> {
    let mut progress = TransferProgress::of(files);
    let mut archive = Archive::new(reader);
    let mut entries = archive.entries()?;
    for (file, destination) in files.iter().zip(all) {
        let mut entry = entries.next().ok_or_else(other_files)?.context(BROKE_OFF)?;
        let name = entry.path_bytes();
        let name = name.strip_suffix(b"/").unwrap_or(&name);
        if name != destination.path.as_os_str().as_bytes() {
            return Err(other_files());
        }
        match &destination.kind {
            DestinationKind::File { executable } => {
                let mut draft = directory.begin(&destination.path, *executable)?;
                copy(&mut entry, file, |bytes| {
                    progress.add(bytes.len());
                    draft.write(bytes)
                })?;
                draft.commit()?;
            }
            DestinationKind::OutwardLink => {
                progress.totals.outward += 1;
                continue;
            }
            DestinationKind::Link { .. } | DestinationKind::Directory => {
                directory.make(destination)?;
            }
        }
        progress.totals.files += 1;
    }
    if entries.next().is_some() {
        return Err(other_files());
    }
    Ok(progress.totals)
}

const BROKE_OFF: &str = "the files broke off; ask again for what is missing";

fn other_files() -> anyhow::Error {
    anyhow::anyhow!(
        "the files are others than those that were listed: a task ended meanwhile; ask again"
    )
}

/// Reads a file's bytes, and holds them to its size and digest.
fn copy(
    source: &mut impl Read,
    file: &RunFile,
    mut take: impl FnMut(&[u8]) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let mut verifier = FileVerifier::default();
    let mut buffer = vec![0; WRITE_BYTES];
    loop {
        let count = source.read(&mut buffer).context(BROKE_OFF)?;
        let bytes = buffer.get(..count).unwrap_or_default();
        if bytes.is_empty() {
            return verifier.verify(file).context("it was not written");
        }
        verifier.add(bytes);
        take(bytes)?;
    }
}

/// The size and digest of bytes as they come.
#[derive(Debug, Default)]
pub(crate) struct FileVerifier {
    hash: Sha256,
    size: u64,
}

impl FileVerifier {
    pub(crate) fn add(&mut self, bytes: &[u8]) {
        self.hash.update(bytes);
        self.size = self.size.saturating_add(u64::try_from(bytes.len()).unwrap_or(u64::MAX));
    }

    /// Whether they are the file's.
    ///
    /// # Errors
    /// They are not.
    pub(crate) fn verify(self, file: &RunFile) -> anyhow::Result<()> {
        if self.size == file.size && digest_of(self.hash.finalize().as_slice()) == file.sha256 {
            return Ok(());
        }
        anyhow::bail!(
            "{:?} has other bytes than its record says ({} bytes, SHA-256 {}); see `cofferdam prove`",
            file.path,
            file.size,
            file.sha256
        )
    }
}

/// How far a transfer is, on a terminal.
struct TransferProgress {
    totals: TransferTotals,
    of: TransferTotals,
    since: Stopwatch,
    shown_ms: u64,
}

impl TransferProgress {
    fn of(files: &[RunFile]) -> Self {
        let bytes = files.iter().filter(|file| file.mode.has_content()).map(|file| file.size);
        let of = TransferTotals {
            files: u64::try_from(files.len()).unwrap_or(u64::MAX),
            bytes: bytes.fold(0, u64::saturating_add),
            outward: 0,
        };
        Self { totals: TransferTotals::default(), of, since: Stopwatch::start(), shown_ms: 0 }
    }

    fn add(&mut self, bytes: usize) {
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        self.totals.bytes = self.totals.bytes.saturating_add(bytes);
        let now = self.since.elapsed_ms();
        if now.saturating_sub(self.shown_ms) >= SHOWN_MS {
            self.shown_ms = now;
            let (done, of) = (byte_count(self.totals.bytes), byte_count(self.of.bytes));
            let (files, all) = (self.totals.files, self.of.files);
            output::progress(&format!("{files} of {all} files, {done} of {of}"));
        }
    }
}

impl Drop for TransferProgress {
    /// Takes the line away, however the transfer ends.
    fn drop(&mut self) {
        if self.shown_ms > 0 {
            output::progress("");
        }
    }
}

/// Bytes for people: `12 bytes`, `3.4 MB`.
pub(crate) fn byte_count(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["kB", "MB", "GB", "TB"];
    if bytes == 1 {
        return "1 byte".to_owned();
    }
    if bytes < 1_000 {
        return format!("{bytes} bytes");
    }
    let mut tenths = u128::from(bytes) / 100;
    let mut unit = 0;
    while tenths >= 10_000 && unit + 1 < UNITS.len() {
        tenths /= 1_000;
        unit += 1;
    }
    let name = UNITS.get(unit).copied().unwrap_or_default();
    format!("{}.{} {name}", tenths / 10, tenths % 10)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Cursor;

    use cofferdam_contracts::canonical::digest_bytes;
    use serde_json::json;
    use tar::{Builder, EntryType, Header};

    use super::*;

    fn file(path: &str, content: &[u8]) -> RunFile {
        let row = json!({"task": "t", "stepId": "ExecuteST:t", "taskKey": "a".repeat(64), "attempt": 1, "path": path,
            "sha256": digest_bytes(content), "size": content.len(), "uri": "artifact://x", "createdAt": 5});
        serde_json::from_value(row).unwrap()
    }

    fn archive(entries: &[(&str, &[u8])]) -> Vec<u8> {
        let mut builder = Builder::new(Vec::new());
        for (name, content) in entries {
            let mut header = Header::new_ustar();
            header.set_entry_type(EntryType::Regular);
            header.set_size(u64::try_from(content.len()).unwrap());
            header.set_mode(0o644);
            builder.append_data(&mut header, name, *content).unwrap();
        }
        builder.into_inner().unwrap()
    }

    fn unpacked(
        files: Vec<RunFile>,
        bytes: Vec<u8>,
    ) -> (anyhow::Result<TransferTotals>, Vec<String>) {
        let dir = tempfile::tempdir().unwrap();
        let all = destinations(&files, 1).unwrap();
        let mut directory = OutputDirectory::open(dir.path(), false).unwrap();
        let end = written(Cursor::new(bytes), &files, &all, &mut directory);
        let names = fs::read_dir(dir.path()).unwrap();
        let mut names: Vec<String> =
            names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        (end, names)
    }

    #[test]
    fn files_are_written_as_the_list_says() {
        let files = vec![file("a", b"one"), file("b\nc", b"")];
        let (end, names) = unpacked(files, archive(&[("a", b"one"), ("b\nc", b"")]));
        assert_eq!(end.unwrap(), TransferTotals { files: 2, bytes: 3, outward: 0 });
        assert_eq!(names, ["a", "b\nc"]);
    }

    #[test]
    fn other_bytes_names_or_numbers_end_it_and_leave_no_half_file() {
        let files = || vec![file("a", b"one"), file("b", b"two")];
        for (bytes, words, left) in [
            (archive(&[("a", b"one"), ("b", b"TWO")]), "other bytes", vec!["a"]),
            (archive(&[("a", b"one"), ("b", b"tw")]), "other bytes", vec!["a"]),
            (archive(&[("a", b"one"), ("c", b"two")]), "others than those", vec!["a"]),
            (archive(&[("a", b"one")]), "others than those", vec!["a"]),
            (
                archive(&[("a", b"one"), ("b", b"two"), ("c", b"")]),
                "others than those",
                vec!["a", "b"],
            ),
        ] {
            let (end, names) = unpacked(files(), bytes);
            let why = format!("{:#}", end.unwrap_err());
            assert!(why.contains(words), "{words}: {why}");
            assert_eq!(names, left, "{why}");
        }
        let whole = archive(&[("a", b"one"), ("b", b"two")]);
        let (end, names) = unpacked(files(), whole[..1_026].to_vec());
        assert!(end.is_err() && names == ["a"]);
    }

    #[test]
    fn bytes_are_counted_for_people() {
        for (bytes, text) in [
            (0, "0 bytes"),
            (1, "1 byte"),
            (999, "999 bytes"),
            (1_000, "1.0 kB"),
            (999_999, "999.9 kB"),
            (3_456_789, "3.4 MB"),
            (u64::MAX, "18446744.0 TB"),
        ] {
            assert_eq!(byte_count(bytes), text);
        }
    }
}
