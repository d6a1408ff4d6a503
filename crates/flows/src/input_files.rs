//! What a task is given in its sandbox: texts of its plan, artifacts, files that other tasks left, and paths of the host.

use std::collections::BTreeMap;
use std::ops::Deref;

use cofferdam_contracts::artifact::{ArtifactMode, AttemptFiles};
use cofferdam_contracts::canonical::digest_bytes;
use cofferdam_contracts::error::Refusal;
use cofferdam_contracts::pipeline::MAX_FILE_SOURCES;
use cofferdam_contracts::run_file::{MAX_RUN_FILES, RunFile};
use cofferdam_contracts::sandbox::{AccessMode, InputFile, SandboxRequest};
use cofferdam_contracts::tree_upload;
use cofferdam_ledger::objects::ObjectRow;
use cofferdam_ledger::run_files::StoredFile;
use cofferdam_ledger::tasks::TaskContext;
use cofferdam_sandbox::{HostPath, Input, InputPiece, InputPieces};
use cofferdam_store::ObjectStream;
use tokio::sync::{Semaphore, SemaphorePermit, mpsc};

use crate::error::Error;
use crate::executor::Executor;
use crate::objects::ObjectError;
use crate::patience::patiently;
use crate::run_files::{FileChoice, decode_name, encode_name};
use crate::{task_trees, toolchains};

/// Files of other tasks that one task is given at most.
const MAX_TASK_FILES: usize = 20_000;
/// Their bytes together: as much as two tasks leave at most by default. Those of up to [`HELD_BYTES`] are in the worker's memory on
/// their way in, the others are streamed.
const MAX_TASK_FILE_BYTES: u64 = 2 * 1024 * 1024 * 1024;
/// Bytes up to which a file is in memory on its way in: lock files, which caches of dependencies are known by, are smaller.
const HELD_BYTES: u64 = 1024 * 1024;
/// Pieces of a stream that wait for its sandbox, 1 MiB each.
const AHEAD: usize = 2;
/// MiB of files in memory that a worker holds for all of its tasks: others wait.
const MAX_WAITING_MIB: usize = 512;
/// Bytes of files in memory of one task: not more than there ever is for all, or it would wait for ever, and all others behind it.
const MAX_HELD_BYTES: u64 = 512 * 1024 * 1024;

/// Why an input cannot be given.
pub(crate) enum NoInput {
    /// The ledger did not answer: it may a moment later.
    Passing(String),
    /// What was named is not there, or is not what it was, and stays so.
    Lasting(String),
}

/// What a task is given, while its sandbox is made of it.
#[derive(Debug)]
pub(crate) struct TaskInputs {
    inputs: Vec<Input>,
    /// Its part of the worker's memory for files of other tasks.
    _share: Option<SemaphorePermit<'static>>,
}

impl Deref for TaskInputs {
    type Target = [Input];

    fn deref(&self) -> &[Input] {
        &self.inputs
    }
}

/// MiB of files of other tasks that are on their way into sandboxes of this worker.
static SHARES: Semaphore = Semaphore::const_new(MAX_WAITING_MIB);

/// Inline texts, artifacts of this tenant, and directories of this host.
pub(crate) async fn inputs(
    executor: &Executor,
    task: &TaskContext,
    request: &SandboxRequest,
) -> Result<TaskInputs, NoInput> {
    let lasting = |cause: String| Err(NoInput::Lasting(cause));
    let mut inputs = Vec::with_capacity(request.files_in.len());
    let mut left = TaskFileAllowance::default();
    let mut chosen = Vec::new();
    let copies = task_trees::given(executor, task, request).await?;
    sources_fit(request.files_in.iter().filter_map(|file| file.uri.as_deref()))?;
    for file in &request.files_in {
        let path = file.path.clone();
        let input = match (&file.inline, &file.uri) {
            (Some(text), None) => {
                Input::Bytes { path, bytes: text.clone().into_bytes(), mode: mode(file.access) }
            }
            (None, Some(uri)) if uri.starts_with("artifact://") => {
                named(
                    executor,
                    task,
                    uri,
                    InputTarget { path, mode: mode(file.access), is_streamed: false },
                )
                .await?
            }
            (None, Some(uri)) if let Some(files) = AttemptFiles::parse(uri) => {
                chosen.extend(left.files(executor, task, file, &files).await?);
                continue;
            }
            (None, Some(uri)) => match file.host_source() {
                Some(source) => {
                    let tree = copies.get(source).filter(|_| file.tree.is_some()).cloned();
                    if tree.is_none() && tree_upload::named_by(source).is_some() {
                        return lasting(format!(
                            "{source}: this kind of run is not given a sent directory"
                        ));
                    }
                    let source = HostPath::said(source);
                    Input::Host { path, source, access: file.access, tree }
                }
                None => {
                    return lasting(format!(
                        "{uri}: only host://, tree:, artifact:// and artifacts:// are known"
                    ));
                }
            },
            _ => return lasting(format!("{path}: exactly one of inline and uri")),
        };
        inputs.push(input);
    }
    if !request.toolchains.is_empty() {
        inputs.extend(toolchains(executor, task, request).await?);
    }
    apart(&chosen)?;
    let share = share(held_mib(&mut chosen)?).await;
    for file in chosen {
        inputs.push(file.read(executor, task).await?);
    }
    Ok(TaskInputs { inputs, _share: share })
}

/// Toolchains of this host, as the plan pins them. A worker that does not have one leaves the task to another.
async fn toolchains(
    executor: &Executor,
    task: &TaskContext,
    request: &SandboxRequest,
) -> Result<Vec<Input>, NoInput> {
    let config = executor.flows.ledger.config();
    let rows = patiently(|| config.rows(&task.tenant)).await;
    let rows = rows.map_err(|e: Error| NoInput::Passing(e.to_string()))?;
    let wanted = request.toolchains.clone();
    let found =
        tokio::task::spawn_blocking(move || toolchains::inputs(&wanted, &toolchains::dirs(&rows)));
    let found = found.await.map_err(|lost| NoInput::Passing(lost.to_string()))?;
    let why = match found {
        Ok(inputs) => return Ok(inputs),
        Err(why) => why,
    };
    // Another host may have it.
    let admission = &executor.flows.runs.admission;
    let is_only = admission.is_decisive(&executor.flows.ledger).await.unwrap_or(false);
    Err(if is_only { NoInput::Lasting(why) } else { NoInput::Passing(why) })
}

/// Two files that would lie in one place are refused: which of them a task sees is not to be a matter of their order. Pure.
fn apart(chosen: &[SourceFile]) -> Result<(), NoInput> {
    let mut places: BTreeMap<&str, &SourceFile> = BTreeMap::new();
    for one in chosen {
        let Some(other) = places.insert(&one.path, one) else { continue };
        if other.file.sha256 != one.file.sha256 {
            let why = format!(
                "{}: two files of earlier tasks go there, {} and {}: give them `to` of their own",
                one.path, other.file.uri, one.file.uri
            );
            return Err(NoInput::Lasting(why));
        }
    }
    Ok(())
}

/// MiB of memory for the files that are not streamed. Once they have all that one task may, further ones of the store are streamed,
/// however small. Pure.
fn held_mib(chosen: &mut [SourceFile]) -> Result<u32, NoInput> {
    let in_database = chosen.iter().filter(|file| file.object.is_none());
    let mut held: u64 = in_database.map(|file| file.file.size).sum();
    if held > MAX_HELD_BYTES {
        return Err(NoInput::Lasting(format!(
            "files of other tasks that lie in the database are more than {} MiB; match fewer, or pack them",
            MAX_HELD_BYTES / (1024 * 1024)
        )));
    }
    for file in chosen.iter_mut().filter(|file| file.object.is_some() && !file.is_streamed) {
        match held.saturating_add(file.file.size) {
            all if all <= MAX_HELD_BYTES => held = all,
            _ => file.is_streamed = true,
        }
    }
    Ok(u32::try_from(held.div_ceil(1024 * 1024)).unwrap_or(u32::MAX))
}

/// Waits for its part of the memory, all at once: two that had a half each would wait for ever.
async fn share(mib: u32) -> Option<SemaphorePermit<'static>> {
    match mib {
        0 => None,
        // It is never closed.
        _ => SHARES.acquire_many(mib).await.ok(),
    }
}

/// A file of another task that a task is given.
#[derive(Debug)]
struct SourceFile {
    file: RunFile,
    /// Where it is inside.
    path: String,
    mode: u32,
    /// The object of a store that has it; otherwise the database has it.
    object: Option<ObjectRow>,
    /// It lies in a store, and has no room in memory.
    is_streamed: bool,
}

impl SourceFile {
    async fn read(self, executor: &Executor, task: &TaskContext) -> Result<Input, NoInput> {
        let Self { file, path, mode, object, is_streamed } = self;
        read(executor, task, &file.uri, object, InputTarget { path, mode, is_streamed }).await
    }
}

/// Where an artifact goes in a sandbox, and how.
struct InputTarget {
    path: String,
    mode: u32,
    /// As a stream of its store, however small it is.
    is_streamed: bool,
}

/// An artifact of this tenant that its URI alone is known of.
async fn named(
    executor: &Executor,
    task: &TaskContext,
    uri: &str,
    target: InputTarget,
) -> Result<Input, NoInput> {
    let artifacts = executor.flows.ledger.artifacts();
    let head = patiently(|| artifacts.head(&task.tenant, uri)).await;
    let head = head.map_err(|e: Error| NoInput::Passing(format!("{uri}: {e}")))?;
    let object = head.ok_or_else(|| missing(uri))?.object;
    read(executor, task, uri, object, target).await
}

fn missing(uri: &str) -> NoInput {
    NoInput::Lasting(format!("{uri}: no such artifact"))
}

/// An artifact of this tenant as the file that a task is given: in memory, or, where it is large or its target wants it, as a stream of
/// the store that has its `object`.
async fn read(
    executor: &Executor,
    task: &TaskContext,
    uri: &str,
    object: Option<ObjectRow>,
    target: InputTarget,
) -> Result<Input, NoInput> {
    let InputTarget { path, mode, is_streamed } = target;
    let unread = |error: ObjectError| match error.fault().is_passing() {
        true => NoInput::Passing(format!("{uri}: {error}")),
        false => NoInput::Lasting(format!("{uri}: {error}")),
    };
    let (bytes, sha256) = match object {
        None => {
            let artifacts = executor.flows.ledger.artifacts();
            let stored = patiently(|| artifacts.read(&task.tenant, uri)).await;
            let stored = stored.map_err(|e: Error| NoInput::Passing(format!("{uri}: {e}")))?;
            let stored = stored.ok_or_else(|| missing(uri))?;
            (stored.bytes, stored.sha256)
        }
        Some(row) => {
            let reader = executor.flows.objects.open(&row).await.map_err(unread)?;
            if is_streamed || row.size > HELD_BYTES {
                let begin = move || {
                    let (sender, pieces) = mpsc::channel(AHEAD);
                    tokio::spawn(feed(reader.stream(0..row.size), sender));
                    pieces
                };
                let pieces = InputPieces::new(row.size, begin);
                return Ok(Input::Stream { path, pieces, sha256: row.sha256, mode });
            }
            let bytes = reader.part(0..row.size).await.map_err(ObjectError::from);
            (bytes.map_err(unread)?, row.sha256)
        }
    };
    match digest_bytes(&bytes) == sha256 {
        true => Ok(Input::Bytes { path, bytes, mode }),
        false => Err(NoInput::Lasting(format!("{uri}: its bytes do not have the recorded hash"))),
    }
}

/// Gives a stream to a sandbox, until that wants no more.
async fn feed(mut stream: ObjectStream, sandbox: mpsc::Sender<InputPiece>) {
    loop {
        let piece = match stream.next().await {
            Ok(None) => return,
            Ok(Some(piece)) => Ok(piece),
            Err(error) => Err(error.to_string()),
        };
        let is_over = piece.is_err();
        if sandbox.send(piece).await.is_err() || is_over {
            return;
        }
    }
}

fn sources_fit<'a>(uris: impl Iterator<Item = &'a str>) -> Result<(), NoInput> {
    match uris.filter_map(AttemptFiles::parse).count() > MAX_FILE_SOURCES {
        false => Ok(()),
        true => Err(NoInput::Lasting(format!(
            "files of more than {MAX_FILE_SOURCES} tasks; collect them in several tasks first"
        ))),
    }
}

/// Files of other tasks that one task may still be given.
struct TaskFileAllowance {
    files: usize,
    bytes: u64,
}

impl Default for TaskFileAllowance {
    fn default() -> Self {
        Self { files: MAX_TASK_FILES, bytes: MAX_TASK_FILE_BYTES }
    }
}

impl TaskFileAllowance {
    /// The files of an attempt that match. Links and empty directories are none.
    async fn files(
        &mut self,
        executor: &Executor,
        task: &TaskContext,
        file: &InputFile,
        asked: &AttemptFiles<'_>,
    ) -> Result<Vec<SourceFile>, NoInput> {
        let artifacts = executor.flows.ledger.artifacts();
        let most = i64::try_from(MAX_RUN_FILES).unwrap_or(i64::MAX);
        let asking = || artifacts.attempt_files(&task.tenant, &asked.task, most, encode_name);
        let found = patiently(asking).await;
        let found = found.map_err(|e| NoInput::Passing(format!("files of another task: {e}")))?;
        let mut choice = FileChoice::parse(Some(asked.glob)).map_err(Self::lasting)?;
        let mut chosen = Vec::new();
        for StoredFile { file: found, object, .. } in found {
            if !found.mode.has_content() || !choice.has(&found).map_err(Self::lasting)? {
                continue;
            }
            self.take(&found)?;
            let name = below(asked.glob, &found.path);
            let name = String::from_utf8(decode_name(name)).map_err(|_| {
                let why = "its name is not UTF-8, and a task is given names that are";
                NoInput::Lasting(format!("file {:?} of task {:?}: {why}", found.path, found.task))
            })?;
            let x = if found.mode == ArtifactMode::Executable { 0o111 } else { 0 };
            let (path, mode) = (format!("{}/{name}", file.path), mode(file.access) | x);
            let is_streamed = object.is_some() && found.size > HELD_BYTES;
            chosen.push(SourceFile { file: found, path, mode, object, is_streamed });
        }
        if chosen.is_empty() && !file.optional {
            let why = "no file that the task left matches; add it to the `artifacts` of that task";
            return Err(NoInput::Lasting(format!("files {:?}: {why}", asked.glob)));
        }
        Ok(chosen)
    }

    fn take(&mut self, file: &RunFile) -> Result<(), NoInput> {
        let left = self.files.checked_sub(1).zip(self.bytes.checked_sub(file.size));
        let Some((files, bytes)) = left else {
            return Err(NoInput::Lasting(format!(
                "files of other tasks are more than {MAX_TASK_FILES}, or more than {} MiB; match fewer, or pack them",
                MAX_TASK_FILE_BYTES / (1024 * 1024)
            )));
        };
        (self.files, self.bytes) = (files, bytes);
        Ok(())
    }

    fn lasting(refusal: Refusal) -> NoInput {
        NoInput::Lasting(format!("files of another task: {}", refusal.message))
    }
}

/// The name of a file below the directory that it is given in: its path without the directories that its glob spells out. `dist/**`
/// and `dist` give `dist/x/y` as `x/y`.
fn below<'p>(glob: &str, path: &'p str) -> &'p str {
    let glob = glob.trim_end_matches('/');
    let is_literal = |part: &str| !part.contains(['*', '?']);
    let spelled = match glob.split('/').all(is_literal) {
        true => match path.strip_prefix(glob).and_then(|rest| rest.strip_prefix('/')) {
            Some(name) => return name,
            None => glob.rsplit_once('/').map_or("", |(dir, _)| dir),
        },
        false => {
            let parts = glob.split('/').take_while(|part| is_literal(part));
            let length = parts.map(|part| part.len() + 1).sum::<usize>();
            glob.get(..length.saturating_sub(1)).unwrap_or("")
        }
    };
    path.strip_prefix(spelled).and_then(|rest| rest.strip_prefix('/')).unwrap_or(path)
}

fn mode(access: AccessMode) -> u32 {
    match access {
        AccessMode::ReadOnly => 0o444,
        AccessMode::WorkspaceWrite | AccessMode::Full => 0o644,
    }
}

#[cfg(test)]
mod tests {
    use cofferdam_contracts::id::{ObjectId, TenantId};

    use super::*;

    #[test]
    fn what_a_glob_spells_out_is_not_in_the_names_that_it_gives() {
        for (glob, path, name) in [
            ("dist/**", "dist/x/y", "x/y"),
            ("dist/*.js", "dist/a.js", "a.js"),
            ("dist", "dist/x/y", "x/y"),
            ("dist/", "dist/x", "x"),
            ("dist/a.js", "dist/a.js", "a.js"),
            ("a.js", "a.js", "a.js"),
            ("**", "dist/x", "dist/x"),
            ("*/x", "dist/x", "dist/x"),
            ("a/b/**", "a/b/c", "c"),
            ("di?t/**", "dist/x", "dist/x"),
            ("", "dist/x", "dist/x"),
        ] {
            assert_eq!(below(glob, path), name, "{glob}");
        }
    }

    fn file(size: u64) -> RunFile {
        let key = "a".repeat(64);
        serde_json::from_value(
            serde_json::json!({"task": "t", "stepId": "ExecuteST:t", "taskKey": key, "attempt": 1,
            "path": "x", "sha256": key, "size": size, "uri": "artifact://x", "createdAt": 5}),
        )
        .unwrap()
    }

    fn source(size: u64, is_in_store: bool) -> SourceFile {
        let is_streamed = is_in_store && size > HELD_BYTES;
        let file = file(size);
        let object = is_in_store.then(|| ObjectRow {
            id: ObjectId::parse(&"0".repeat(32)).unwrap(),
            tenant: TenantId::parse("acme").unwrap(),
            store: "f".repeat(32),
            sha256: file.sha256.clone(),
            size,
            sealed_key: None,
            sealed_by: file.sha256.clone(),
        });
        SourceFile { file, path: "x".into(), mode: 0o644, object, is_streamed }
    }

    #[test]
    fn no_task_waits_for_more_memory_than_there_is() {
        let all = u32::try_from(MAX_WAITING_MIB).unwrap();
        let streamed =
            |chosen: &[SourceFile]| chosen.iter().filter(|file| file.is_streamed).count();
        // Two GiB of files of 1 MiB, one of which is larger than memory takes.
        let mut chosen: Vec<SourceFile> = (0..2_047).map(|_| source(HELD_BYTES, true)).collect();
        chosen.push(source(HELD_BYTES + 1, true));
        assert!(matches!(held_mib(&mut chosen), Ok(mib) if mib == all));
        assert_eq!(streamed(&chosen), 2_048 - MAX_WAITING_MIB);
        // The database's cannot be streamed, and come first.
        let mut chosen = vec![source(HELD_BYTES, true), source(MAX_HELD_BYTES - 5, false)];
        assert!(matches!(held_mib(&mut chosen), Ok(mib) if mib == all));
        assert_eq!(streamed(&chosen), 1);
        let mut chosen = vec![source(MAX_HELD_BYTES, false), source(1, false)];
        assert!(matches!(held_mib(&mut chosen), Err(NoInput::Lasting(_))));
        assert!(matches!(held_mib(&mut [source(0, false), source(5, true)]), Ok(1)));
        assert!(matches!(held_mib(&mut []), Ok(0)));
    }

    #[test]
    fn files_of_other_tasks_have_bounds() {
        let mut left = TaskFileAllowance::default();
        assert!(left.take(&file(MAX_TASK_FILE_BYTES)).is_ok() && left.take(&file(1)).is_err());
        let mut left = TaskFileAllowance::default();
        assert!((0..MAX_TASK_FILES).all(|_| left.take(&file(0)).is_ok()));
        assert!(left.take(&file(0)).is_err());
        let sources = |count: usize| {
            let uri = format!("artifacts://run/rn_1/step/ExecuteST:t/task/{}/x", "a".repeat(64));
            vec![uri; count]
        };
        assert!(sources_fit(sources(MAX_FILE_SOURCES).iter().map(String::as_str)).is_ok());
        assert!(sources_fit(sources(MAX_FILE_SOURCES + 1).iter().map(String::as_str)).is_err());
    }
}
