//! `logs`: what tasks wrote, by whole lines.
//!
//! ```text
//! steps -> tasks by name -> ended: the artifact, by range where only its end is asked for -\
//!                        -> else: the stream, also as it comes (--follow)                 -> lines -> text or JSON
//! ```

use std::collections::BTreeSet;

use anyhow::Context;
use clap::Args;
use cofferdam_ambient::clock;
use cofferdam_contracts::artifact::{ArtifactKind, ArtifactRow};
use cofferdam_contracts::printable;
use cofferdam_contracts::run::RunHeader;
use cofferdam_contracts::run_file::FILES;
use cofferdam_contracts::step::StepRow;
use cofferdam_flows::WATCH_BYTES;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use serde_json::{Value, json};

use super::client::{Client, segment};
use super::connection::{Connection, within};
use super::exit::{Exit, Misuse};
use super::failure::word;
use super::follow::LOOK;
use super::line_buffer::{LineBuffer, last_lines};
use super::locations::Locations;
use super::tail::{StreamEvent, StreamName, StreamQuery, tail};
use super::task_choice::{LogTask, TaskChoice, TaskSelection};
use super::{output, run_lookup, stdout};

/// Lines that may be asked for: more is all of it.
const MAX_TAIL: u64 = 1_000_000;
/// Bytes of lines that are written at once.
const WRITE_BYTES: usize = 64 * 1024;
/// What is fetched first of a log whose end is asked for; eight times as much each time that it has too few lines.
const FIRST_BYTES: u64 = 16 * 1024;
/// The file that has the text of a task that only keeps one.
const VALUE: &str = "value.txt";

#[derive(Debug, Args)]
pub(crate) struct LogsArgs {
    #[arg(help = super::flag::RUN_OR_TASK, value_parser = super::flag::run)]
    pub id: String,
    /// Only this task, by its name or a beginning that no other name has; may be repeated
    #[arg(long = "task", value_name = "NAME")]
    pub tasks: Vec<String>,
    /// Only tasks that failed
    #[arg(long, conflicts_with = "follow")]
    pub failed: bool,
    /// Only the last lines of each stream
    #[arg(long, value_name = "LINES", value_parser = clap::value_parser!(u64).range(..=MAX_TAIL))]
    pub tail: Option<u64>,
    /// Follow until the run ends
    #[arg(short, long)]
    pub follow: bool,
    /// Only standard output
    #[arg(long, conflicts_with = "stderr")]
    pub stdout: bool,
    /// Only standard error
    #[arg(long)]
    pub stderr: bool,
    /// One JSON object a line, with its task and stream
    #[arg(long)]
    pub json: bool,
}

impl LogsArgs {
    fn streams(&self) -> &'static [StreamName] {
        match (self.stdout, self.stderr) {
            (true, _) => &[StreamName::Stdout],
            (_, true) => &[StreamName::Stderr],
            _ => &StreamName::BOTH,
        }
    }

    /// Whether the id is a task's key and not a run's.
    fn is_of_task(&self) -> bool {
        self.id.len() == 64 && self.id.bytes().all(|byte| byte.is_ascii_hexdigit())
    }

    fn tail(&self) -> Option<usize> {
        self.tail.map(|lines| usize::try_from(lines).unwrap_or(usize::MAX))
    }
}

pub(crate) async fn logs(at: &Locations, args: &LogsArgs) -> anyhow::Result<Exit> {
    if args.is_of_task() && (args.failed || !args.tasks.is_empty()) {
        let why = "a task key is one task: leave out --task and --failed, or give the run's id";
        return Err(Misuse(why.to_owned()).into());
    }
    within(Connection::reading(at), async |session| logged(&session.client, args).await).await?;
    Ok(Exit::Ok)
}

async fn logged(client: &Client, args: &LogsArgs) -> anyhow::Result<()> {
    if args.is_of_task() {
        return of_task(client, args).await;
    }
    let choice = TaskChoice { names: args.tasks.clone(), failures_only: args.failed };
    let path = format!("/api/runs/{}", segment(&run_lookup::run_id(client, &args.id).await?));
    match args.follow {
        true => follow_run(client, args, &path, &choice).await,
        false => of_run(client, args, &path, &choice).await,
    }
}

/// One attempt by its key.
async fn of_task(client: &Client, args: &LogsArgs) -> anyhow::Result<()> {
    let key = args.id.parse().context("a task key")?;
    let task = LogTask { key, name: String::new(), attempt: None };
    let each = args.streams().iter().map(|stream| stream_of(client, args, &task, *stream, false));
    if !args.follow {
        for one in each {
            one.await?;
        }
        return Ok(());
    }
    drained(each.collect()).await
}

/// Until all of them are over, or the reader of the output has gone.
async fn drained(
    mut tails: FuturesUnordered<impl Future<Output = anyhow::Result<()>>>,
) -> anyhow::Result<()> {
    loop {
        tokio::select! {
            ended = tails.next() => match ended {
                Some(ended) => ended?,
                None => return Ok(()),
            },
            () = stdout::reader_gone() => return Ok(()),
        }
    }
}

/// What the tasks of a run wrote so far.
async fn of_run(
    client: &Client,
    args: &LogsArgs,
    path: &str,
    choice: &TaskChoice,
) -> anyhow::Result<()> {
    let steps: Vec<StepRow> = client.get(&format!("{path}/steps")).await?;
    let tasks = choice.of(&steps)?.complete()?;
    if tasks.is_empty() {
        let none = if args.failed { "no task failed" } else { "no task has started yet" };
        output::note(none);
        return Ok(());
    }
    let artifacts: Vec<ArtifactRow> = client.get(&format!("{path}/artifacts")).await?;
    let only = tasks.len() == 1;
    for task in &tasks {
        for stream in args.streams() {
            let is_log = |row: &&ArtifactRow| {
                row.task_key == task.key && row.kind.as_str() == stream.as_str()
            };
            let mut printer = LogPrinter::of(task, *stream, !only, args.json);
            match artifacts.iter().find(is_log) {
                Some(log) => printer.take(&kept(client, log, args.tail()).await?),
                // It runs, or a later attempt has the artifacts.
                None => {
                    streamed(client, args, &mut printer).await?;
                    printer.note_if_cut();
                }
            }
            printer.finish();
        }
    }
    note_values(args, &tasks, &artifacts);
    Ok(())
}

/// Says of tasks that a person asked for where their text is, if they only keep one. Among all tasks of a run that would be noise.
fn note_values(args: &LogsArgs, tasks: &[LogTask], artifacts: &[ArtifactRow]) {
    if args.tasks.is_empty() && tasks.len() != 1 {
        return;
    }
    let notes = tasks.iter().filter_map(|task| value_note(&args.id, task, artifacts));
    notes.for_each(|words| output::note(&words));
}

/// What is said of a task that only keeps a text: no command wrote anything. Pure.
fn value_note(run: &str, task: &LogTask, artifacts: &[ArtifactRow]) -> Option<String> {
    let own = || artifacts.iter().filter(move |row| row.task_key == task.key);
    let is_stream = |kind| matches!(kind, ArtifactKind::Stdout | ArtifactKind::Stderr);
    let is_value = own().any(|row| row.name.strip_prefix(FILES) == Some(VALUE))
        && !own().any(|row| is_stream(row.kind));
    let name = &task.name;
    is_value.then(|| {
        format!(
            "task {name} runs no command and has no output; its value: cofferdam artifacts cat {} {VALUE} --task {}",
            word(run),
            word(name)
        )
    })
}

/// The bytes of an artifact, or its last lines.
async fn kept(client: &Client, log: &ArtifactRow, lines: Option<usize>) -> anyhow::Result<Vec<u8>> {
    let Some(lines) = lines else { return client.artifact(&log.uri).await };
    let size = u64::try_from(log.size).unwrap_or(0);
    let mut most = FIRST_BYTES;
    loop {
        let mut end = client.artifact_end(log, most).await?;
        match last_lines(&end, lines) {
            Some(at) => return Ok(end.split_off(at)),
            None if most >= size => return Ok(end),
            None => most = most.saturating_mul(8),
        }
    }
}

/// Shows what a stream has so far, or its last lines, and gives the number of the chunk that comes next.
async fn streamed(
    client: &Client,
    args: &LogsArgs,
    printer: &mut LogPrinter,
) -> anyhow::Result<i64> {
    let mut text = Vec::new();
    let key = printer.key.clone();
    let query = StreamQuery { task: &key, stream: printer.stream, from: 0, follow: false };
    let next = tail(client, query, |event| {
        if let StreamEvent::Chunk(chunk) = event {
            text.extend_from_slice(chunk.as_bytes());
        }
    })
    .await?;
    let from = args.tail().and_then(|lines| last_lines(&text, lines)).unwrap_or(0);
    printer.live_bytes = text.len();
    printer.take(text.get(from..).unwrap_or_default());
    Ok(next)
}

/// Shows one stream of one attempt, with `--follow` until the run is over.
async fn stream_of(
    client: &Client,
    args: &LogsArgs,
    task: &LogTask,
    stream: StreamName,
    is_labelled: bool,
) -> anyhow::Result<()> {
    let mut printer = LogPrinter::of(task, stream, is_labelled, args.json);
    // Who follows is told what there was, too.
    let is_told = args.follow && args.tail.is_none();
    let from = if is_told { 0 } else { streamed(client, args, &mut printer).await? };
    if args.follow {
        return follow_stream(client, printer, from).await;
    }
    printer.finish();
    printer.note_if_cut();
    Ok(())
}

async fn follow_stream(client: &Client, mut printer: LogPrinter, from: i64) -> anyhow::Result<()> {
    let key = printer.key.clone();
    let query = StreamQuery { task: &key, stream: printer.stream, from, follow: true };
    tail(client, query, |event| match event {
        StreamEvent::Chunk(chunk) => {
            printer.live_bytes = printer.live_bytes.saturating_add(chunk.len());
            printer.take(chunk.as_bytes());
        }
        StreamEvent::Quiet => printer.finish(),
    })
    .await?;
    printer.finish();
    printer.note_if_cut();
    Ok(())
}

/// Shows a run's output as it comes, that of tasks to come too, until the run or its reader is gone.
async fn follow_run(
    client: &Client,
    args: &LogsArgs,
    path: &str,
    choice: &TaskChoice,
) -> anyhow::Result<()> {
    let mut known = BTreeSet::new();
    let mut tails = FuturesUnordered::new();
    let tasks = loop {
        let header: RunHeader = client.get(path).await?;
        let steps: Vec<StepRow> = client.get(&format!("{path}/steps")).await?;
        let selection: TaskSelection = choice.of(&steps)?;
        let only = selection.tasks.len() == 1;
        for task in &selection.tasks {
            if known.insert(task.key.clone()) {
                for stream in args.streams() {
                    let task = task.clone();
                    tails.push(async move { stream_of(client, args, &task, *stream, !only).await });
                }
            }
        }
        if header.status.is_terminal() {
            // A task that was waited for never came.
            break selection.complete()?;
        }
        tokio::select! {
            Some(ended) = tails.next() => ended?,
            () = clock::sleep(LOOK) => {}
            () = stdout::reader_gone() => return Ok(()),
        }
    };
    drained(tails).await?;
    let artifacts: Vec<ArtifactRow> = client.get(&format!("{path}/artifacts")).await?;
    note_values(args, &tasks, &artifacts);
    Ok(())
}

/// Prints one stream of one attempt by whole lines.
#[derive(Debug)]
struct LogPrinter {
    key: String,
    name: String,
    attempt: Option<i32>,
    stream: StreamName,
    /// The task's name stands before each line: there are several.
    is_labelled: bool,
    is_json: bool,
    /// Bytes that were read of the live stream.
    live_bytes: usize,
    lines: LineBuffer,
}

impl LogPrinter {
    fn of(task: &LogTask, stream: StreamName, is_labelled: bool, is_json: bool) -> Self {
        let (key, name) = (task.key.to_string(), task.name.clone());
        let lines = LineBuffer::default();
        let attempt = task.attempt;
        Self { key, name, attempt, stream, is_labelled, is_json, live_bytes: 0, lines }
    }

    fn take(&mut self, bytes: &[u8]) {
        let mut lines = std::mem::take(&mut self.lines);
        let mut text = Vec::new();
        lines.push(bytes, |line| self.print(line, &mut text));
        flush(&mut text);
        self.lines = lines;
    }

    /// Prints what has no end of line.
    fn finish(&mut self) {
        if let Some(remainder) = self.lines.remainder() {
            let mut text = Vec::new();
            self.print(&remainder, &mut text);
            flush(&mut text);
        }
    }

    /// Says that the live stream is not all that was written.
    fn note_if_cut(&self) {
        if self.live_bytes >= WATCH_BYTES {
            let (stream, mib) = (self.stream.as_str(), WATCH_BYTES / 1024 / 1024);
            output::note(&format!(
                "the live {stream} of a task ends after {mib} MiB; once the task ended, cofferdam logs RUN shows all that is kept"
            ));
        }
    }

    /// Gathers a line's text: a write for each would take long.
    fn print(&self, line: &[u8], text: &mut Vec<u8>) {
        if self.is_json {
            return output::json_line(&self.object(line));
        }
        text.extend_from_slice(&self.text(line));
        if text.len() >= WRITE_BYTES {
            flush(text);
        }
    }

    fn object(&self, line: &[u8]) -> Value {
        let text = String::from_utf8_lossy(line.strip_suffix(b"\n").unwrap_or(line));
        let name = (!self.name.is_empty()).then_some(&self.name);
        json!({"task": name, "taskKey": self.key, "stream": self.stream.as_str(), "line": text})
    }

    /// The line as it was written; with the task's name before it, it ends in any case.
    fn text(&self, line: &[u8]) -> Vec<u8> {
        if !self.is_labelled {
            return line.to_vec();
        }
        let again = self.attempt.map(|attempt| format!(" (attempt {attempt})")).unwrap_or_default();
        let mut text = format!("{}{again} | ", printable::line(&self.name)).into_bytes();
        text.extend_from_slice(line.strip_suffix(b"\n").unwrap_or(line));
        text.push(b'\n');
        text
    }
}

fn flush(text: &mut Vec<u8>) {
    if !text.is_empty() {
        output::raw(text);
        text.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn printer(is_labelled: bool) -> LogPrinter {
        let key = "a".repeat(64).parse().unwrap();
        let task = LogTask { key, name: "te\x1bst".to_owned(), attempt: None };
        LogPrinter::of(&task, StreamName::Stderr, is_labelled, false)
    }

    #[test]
    fn a_line_is_as_it_was_written_and_behind_a_name_it_ends() {
        let text = |is_labelled: bool, line: &[u8]| printer(is_labelled).text(line);
        assert_eq!(text(false, b"one\n"), b"one\n");
        assert_eq!(text(false, b"half\xff"), b"half\xff");
        assert_eq!(text(true, b"one\n"), b"te\\x1bst | one\n");
        assert_eq!(text(true, b"half\xff"), b"te\\x1bst | half\xff\n");
        let again = LogPrinter { attempt: Some(2), ..printer(true) };
        assert_eq!(again.text(b"one\n"), b"te\\x1bst (attempt 2) | one\n");
    }

    fn artifact(key: &str, kind: &str, name: &str) -> ArtifactRow {
        serde_json::from_value(json!({
            "stepId": "ExecuteST:t", "taskKey": key, "attempt": 1, "idx": 1, "kind": kind, "name": name,
            "uri": format!("artifact://{name}"), "sha256": "a".repeat(64), "size": 1, "createdAt": 5,
        }))
        .unwrap()
    }

    #[test]
    fn a_task_that_keeps_a_text_says_where_it_is_and_one_that_ran_a_command_does_not() {
        let (kept, ran) = ("a".repeat(64), "b".repeat(64));
        let artifacts = [
            artifact(&kept, "artifact_index", "index.json"),
            artifact(&kept, "file", "files/value.txt"),
            artifact(&ran, "file", "files/value.txt"),
            artifact(&ran, "stdout", "stdout.log"),
        ];
        let note = |key: &str| {
            let key = key.parse().unwrap();
            let task = LogTask { key, name: "it's".to_owned(), attempt: None };
            value_note("last", &task, &artifacts)
        };
        assert_eq!(
            note(&kept).unwrap(),
            "task it's runs no command and has no output; its value: cofferdam artifacts cat last value.txt --task 'it'\\''s'"
        );
        assert_eq!((note(&ran), note(&"c".repeat(64))), (None, None));
    }

    #[test]
    fn an_object_has_the_line_without_its_end() {
        let object = printer(true).object(b"a\xff\tb\n");
        assert_eq!(object["line"], "a\u{fffd}\tb");
        assert_eq!((&object["task"], &object["stream"]), (&json!("te\x1bst"), &json!("stderr")));
        assert_eq!(object["taskKey"], "a".repeat(64));
    }
}
