//! `GET /api/runs/{id}/files`: what the tasks of a run left, as a list, or as an archive that is written while it is sent.
//!
//! ```text
//! ledger: pages of files, small ones with their bytes --choice--> archive writer --> body
//!         parts of 1 MiB of the others, of the store's as well -->
//! ```
//! Held is a page and a part, however much a run left. **Bytes that are gone, fewer or more than the list says break the body off,
//! which no client takes for its end.**

use std::collections::VecDeque;
use std::io;

use axum::body::{Body, Bytes};
use cofferdam_contracts::artifact::ArtifactMode;
use cofferdam_contracts::error::{ErrorCode, Refusal};
use cofferdam_contracts::id::RunId;
use cofferdam_contracts::retention::Content;
use cofferdam_contracts::run_file::{FilesFormat, MAX_RUN_FILES, RunFiles};
use cofferdam_flows::Error;
use cofferdam_flows::objects::ObjectStream;
use cofferdam_flows::run_files::{FileChoice, decode_name, encode_name};
use cofferdam_ledger::run_files::{FilePosition, FileQuery, StoredFile};
use futures_util::stream;

use crate::answer::{Answer, AnswerResult, ArchiveAnswer, ok};
use crate::archive::{ArchiveEntry, ArchiveWriter, MAX_LIST_BYTES, listed_bytes};
use crate::call::Call;

/// Files of one read.
const PAGE: i64 = 256;
/// Files up to so many bytes come with their page: 256 of them are 4 MiB.
const WITH_PAGE: i64 = 16 * 1024;
/// Of a larger file at a time.
const PART: u64 = 1024 * 1024;
/// Bytes that are gathered before they are sent.
const PIECE: usize = 256 * 1024;

pub(crate) async fn run_files(call: Call) -> AnswerResult {
    let format = call.one_of("format", FilesFormat::ALL, FilesFormat::as_str)?;
    let choice = FileChoice::parse(call.query.get("glob").map(String::as_str))?;
    let run = call.run_with(Content::Output).await?;
    let tasks = call.flows().ledger.artifacts().tasks(&run).await?;
    let task = call.query.get("task").cloned();
    let mut pages = FilePages { call, run, task, choice, after: None, is_last: false };
    if format == Some(FilesFormat::Zip) {
        listed(&mut pages, tasks).await?;
    }
    match ArchiveWriter::of(format.unwrap_or(FilesFormat::List)) {
        None => list(pages, tasks).await,
        Some(archive) => Ok(streamed(pages, tasks, archive)),
    }
}

async fn list(mut pages: FilePages, tasks: u64) -> AnswerResult {
    let mut found = RunFiles { tasks, files: Vec::new(), more: false };
    while let Some(page) = pages.next(0).await? {
        for stored in page {
            if found.files.len() >= MAX_RUN_FILES {
                found.more = true;
                return ok(&found);
            }
            found.files.push(stored.file);
        }
    }
    ok(&found)
}

/// A zip's list is held until its end: one that would be too large is refused before its first byte.
async fn listed(pages: &mut FilePages, tasks: u64) -> Result<(), Error> {
    let artifacts = pages.call.flows().ledger.artifacts();
    let task = pages.task.as_deref();
    let most = i64::try_from(MAX_LIST_BYTES / listed_bytes(0)).unwrap_or(i64::MAX);
    // Every name as it is on record, behind its task's: in the archive none is longer.
    let all = artifacts.names(&pages.run, task, most.saturating_add(1)).await?;
    let heads = all.count.saturating_mul(listed_bytes(0));
    if heads.saturating_add(all.bytes) <= MAX_LIST_BYTES {
        return Ok(());
    }
    let (mut list, choice) = (0_u64, pages.choice.clone());
    while let Some(page) = pages.next(0).await? {
        for stored in page {
            list = list.saturating_add(listed_bytes(stored.file.path_among(tasks).len()));
        }
        if list > MAX_LIST_BYTES {
            let why = format!(
                "the names of these files take more than {} MiB in a zip: take a tar, or choose fewer by `glob` or `task`",
                MAX_LIST_BYTES / (1024 * 1024)
            );
            return Err(Refusal::new(ErrorCode::PolicyViolation, why).into());
        }
    }
    (pages.choice, pages.after, pages.is_last) = (choice, None, false);
    Ok(())
}

/// A run's files that were chosen, in pages.
struct FilePages {
    call: Call,
    run: RunId,
    task: Option<String>,
    choice: FileChoice,
    after: Option<FilePosition>,
    is_last: bool,
}

impl FilePages {
    /// The next ones, perhaps none of a page; `None` at the end.
    async fn next(&mut self, with_bytes: i64) -> Result<Option<Vec<StoredFile>>, Error> {
        if self.is_last {
            return Ok(None);
        }
        let query = FileQuery {
            run: &self.run,
            task: self.task.as_deref(),
            after: self.after.as_ref(),
            most: PAGE,
            with_bytes,
        };
        let page = self.call.flows().ledger.artifacts().files(query, encode_name).await?;
        self.is_last = i64::try_from(page.len()).unwrap_or(i64::MAX) < PAGE;
        self.after = page.last().map(|last| last.position.clone());
        let mut chosen = Vec::with_capacity(page.len());
        for stored in page {
            if self.choice.has(&stored.file)? {
                chosen.push(stored);
            }
        }
        Ok(Some(chosen))
    }
}

fn streamed(pages: FilePages, tasks: u64, archive: ArchiveWriter) -> Answer {
    let (content_type, extension) = match &archive {
        ArchiveWriter::Tar(_) => ("application/x-tar", "tar"),
        ArchiveWriter::Zip(_) => ("application/zip", "zip"),
    };
    let name = format!("{}.{extension}", pages.run);
    let stream =
        ArchiveStream { pages, tasks, archive: Some(archive), page: VecDeque::new(), open: None };
    let body = Body::from_stream(stream::try_unfold(stream, |mut stream| async move {
        match stream.piece().await {
            Ok(Some(piece)) => io::Result::Ok(Some((Bytes::from(piece), stream))),
            Ok(None) => Ok(None),
            Err(error) => {
                tracing::warn!(run = %stream.pages.run, %error, "an archive of a run's files broke off");
                Err(io::Error::other("the archive broke off"))
            }
        }
    }));
    Answer::Archive(ArchiveAnswer { content_type, name, body })
}

/// An archive as it is sent.
struct ArchiveStream {
    pages: FilePages,
    tasks: u64,
    /// `None` once it is finished.
    archive: Option<ArchiveWriter>,
    page: VecDeque<StoredFile>,
    open: Option<OpenFile>,
}

/// A file of which parts are read.
struct OpenFile {
    stored: StoredFile,
    /// Where its parts come from, if a store has it.
    object: Option<ObjectStream>,
    sent: u64,
}

type StreamResult<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

impl ArchiveStream {
    /// The next bytes; `None` at the end.
    async fn piece(&mut self) -> StreamResult<Option<Vec<u8>>> {
        let Some(mut archive) = self.archive.take() else { return Ok(None) };
        let mut out = Vec::new();
        while out.len() < PIECE {
            if let Some(mut open) = self.open.take() {
                if self.part(&mut open, &mut archive, &mut out).await? {
                    self.open = Some(open);
                }
            } else if let Some(stored) = self.page.pop_front() {
                self.begin(stored, &mut archive, &mut out).await?;
            } else if let Some(page) = self.pages.next(WITH_PAGE).await? {
                self.page = page.into();
            } else {
                archive.finish(&mut out);
                return Ok(Some(out));
            }
        }
        self.archive = Some(archive);
        Ok(Some(out))
    }

    /// The head of a file, and all of it where its bytes are here.
    async fn begin(
        &mut self,
        mut stored: StoredFile,
        archive: &mut ArchiveWriter,
        out: &mut Vec<u8>,
    ) -> StreamResult<()> {
        let file = &stored.file;
        let is_file = file.mode.has_content();
        let is_short = is_file && file.size <= PART;
        if is_short && stored.bytes.is_none() {
            stored.bytes = Some(self.bytes(&stored, 0).await?);
        }
        let file = &stored.file;
        let bytes = stored.bytes.as_ref().filter(|_| is_short);
        let entry = ArchiveEntry {
            name: decode_name(&file.path_among(self.tasks)),
            mode: file.mode,
            target: file.target.as_deref().map(decode_name),
            size: if file.mode == ArtifactMode::Directory { 0 } else { file.size },
            modified_s: u64::try_from(file.created_at).unwrap_or(0) / 1_000,
            crc: bytes.map(|bytes| crc32fast::hash(bytes)),
        };
        archive.begin(entry, out)?;
        match bytes {
            Some(bytes) => archive.data(bytes, out)?,
            None if is_file => {
                let object = match &stored.object {
                    Some(row) => {
                        let reader = self.pages.call.flows().objects.open(row).await?;
                        Some(reader.stream(0..row.size))
                    }
                    None => None,
                };
                self.open = Some(OpenFile { stored, object, sent: 0 });
                return Ok(());
            }
            None => {}
        }
        archive.end(out)?;
        Ok(())
    }

    /// Another part of a file; whether there is more of it.
    async fn part(
        &self,
        open: &mut OpenFile,
        archive: &mut ArchiveWriter,
        out: &mut Vec<u8>,
    ) -> StreamResult<bool> {
        if open.sent < open.stored.file.size {
            let bytes = match &mut open.object {
                Some(object) => object.next().await?.unwrap_or_default(),
                None => self.bytes(&open.stored, open.sent).await?.into(),
            };
            if bytes.is_empty() {
                return Err("the stored file is shorter than its size".into());
            }
            open.sent = open.sent.saturating_add(u64::try_from(bytes.len()).unwrap_or(u64::MAX));
            archive.data(&bytes, out)?;
        }
        if open.sent < open.stored.file.size {
            return Ok(true);
        }
        archive.end(out)?;
        Ok(false)
    }

    async fn bytes(&self, stored: &StoredFile, from: u64) -> StreamResult<Vec<u8>> {
        let (call, file) = (&self.pages.call, &stored.file);
        let range = from..from.saturating_add(PART).min(file.size);
        if let Some(row) = &stored.object {
            return Ok(call.flows().objects.open(row).await?.part(range).await?);
        }
        let artifacts = call.flows().ledger.artifacts();
        let bytes = artifacts.part(&call.who.tenant, &file.uri, &file.sha256, range).await?;
        Ok(bytes.ok_or("the stored file is gone")?)
    }
}
