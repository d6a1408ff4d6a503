//! `artifacts`: what the tasks of a run left, listed, fetched and printed; and `run --keep`.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::{Args, Subcommand};
use cofferdam_contracts::artifact::ArtifactMode;
use cofferdam_contracts::run_file::{FilesFormat, RunFile, RunFiles};
use cofferdam_contracts::step::StepRow;
use serde_json::json;

use super::client::{Client, segment};
use super::connection::Connection;
use super::exit::{Exit, Misuse, Negative};
use super::file_transfer::{FileVerifier, byte_count, planned, unpack};
use super::locations::Locations;
use super::outfile::Target;
use super::output_directory::OutputDirectory;
use super::table::{self, extra, key, usual};
use super::task_choice::TaskChoice;
use super::{output, run_lookup, stdout};

#[derive(Debug, Args)]
pub(crate) struct ArtifactsArgs {
    #[command(subcommand)]
    pub command: ArtifactsCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ArtifactsCommand {
    /// List the files that a run's tasks left
    Ls {
        #[command(flatten)]
        choice: FileChoiceArgs,
        #[arg(long, help = super::flag::JSON)]
        json: bool,
    },
    /// Write them into a directory, or as one archive
    Get {
        #[command(flatten)]
        choice: FileChoiceArgs,
        /// Directory that they are written into: DIR/PATH, or DIR/TASK/PATH where the run has several tasks
        #[arg(short, long = "out", value_name = "DIR", default_value = ".", conflicts_with_all = ["tar", "zip"])]
        out: PathBuf,
        /// Replace files that exist
        #[arg(long)]
        force: bool,
        /// Write a tar archive instead; - is standard output
        #[arg(long, value_name = "FILE", conflicts_with = "zip")]
        tar: Option<PathBuf>,
        /// Write a zip archive instead; - is standard output
        #[arg(long, value_name = "FILE")]
        zip: Option<PathBuf>,
    },
    /// Print their content, in the order of their paths
    Cat {
        #[arg(help = super::flag::RUN, value_parser = super::flag::run)]
        run: String,
        /// Files whose path matches, such as 'dist/*.txt'
        glob: String,
        /// One task alone, by its name or a beginning that no other name has
        #[arg(long, value_name = "NAME")]
        task: Option<String>,
    },
}

#[derive(Debug, Args)]
pub(crate) struct FileChoiceArgs {
    #[arg(help = super::flag::RUN, value_parser = super::flag::run)]
    pub run: String,
    /// Files whose path matches, or lies below a directory that does: 'dist/*.whl', 'logs', '**/*.xml'
    pub glob: Option<String>,
    /// One task alone, by its name or a beginning that no other name has
    #[arg(long, value_name = "NAME")]
    pub task: Option<String>,
}

/// Which files of a run are asked for.
#[derive(Debug, Clone)]
struct FileRequest {
    run: String,
    glob: Option<String>,
    /// The task's whole name.
    task: Option<String>,
}

pub(crate) async fn artifacts(at: &Locations, args: &ArtifactsArgs) -> anyhow::Result<Exit> {
    let session = Connection::reading(at).await?;
    let outcome = answered(&session.client, &args.command).await;
    session.close().await?;
    outcome.map(|()| Exit::Ok)
}

async fn answered(client: &Client, command: &ArtifactsCommand) -> anyhow::Result<()> {
    match command {
        ArtifactsCommand::Ls { choice, json } => {
            let request = FileRequest::of(client, choice).await?;
            ls(&request.found(client).await?, *json);
            Ok(())
        }
        ArtifactsCommand::Get { choice, out, force, tar, zip } => {
            let request = FileRequest::of(client, choice).await?;
            match (tar, zip) {
                (Some(file), _) => archive(client, &request, FilesFormat::Tar, file, *force).await,
                (_, Some(file)) => archive(client, &request, FilesFormat::Zip, file, *force).await,
                (None, None) => get(client, &request, out, *force).await,
            }
        }
        ArtifactsCommand::Cat { run, glob, task } => {
            let choice =
                FileChoiceArgs { run: run.clone(), glob: Some(glob.clone()), task: task.clone() };
            let request = FileRequest::of(client, &choice).await?;
            cat(client, &request).await
        }
    }
}

/// Looks before a run begins whether `run --keep DIR` could write.
pub(crate) fn check_directory(dir: &Path, force: bool) -> anyhow::Result<()> {
    let is_free = match dir.read_dir() {
        Ok(mut entries) => entries.next().is_none(),
        Err(error) => error.kind() == std::io::ErrorKind::NotFound,
    };
    if is_free || (force && dir.is_dir()) {
        return Ok(());
    }
    let named = dir.display();
    let why = format!(
        "--keep {named}: not a new or empty directory: choose another, or replace what is there with --force"
    );
    Err(Misuse(why).into())
}

/// Writes the files of a run that ended into a directory.
pub(crate) async fn keep(
    client: &Client,
    run: &str,
    dir: &Path,
    force: bool,
) -> anyhow::Result<()> {
    let request = FileRequest { run: run.to_owned(), glob: None, task: None };
    let found = request.list(client).await?;
    if found.files.is_empty() {
        output::note("the run left no files to keep");
        return Ok(());
    }
    write(client, &request, found, dir, force).await
}

impl FileRequest {
    /// With the whole name of the task, of which a beginning is enough.
    async fn of(client: &Client, args: &FileChoiceArgs) -> anyhow::Result<Self> {
        let run = run_lookup::run_id(client, &args.run).await?;
        let task = match &args.task {
            None => None,
            Some(name) => {
                let path = format!("/api/runs/{}/steps", segment(&run));
                let steps: Vec<StepRow> = client.get(&path).await?;
                let choice = TaskChoice { names: vec![name.clone()], failures_only: false };
                let tasks = choice.of(&steps)?.complete()?;
                tasks.into_iter().next().map(|task| task.name)
            }
        };
        Ok(Self { run, glob: args.glob.clone(), task })
    }

    fn path(&self, format: FilesFormat) -> String {
        let mut path = format!("/api/runs/{}/files?format={}", segment(&self.run), format.as_str());
        for (name, value) in [("glob", &self.glob), ("task", &self.task)] {
            if let Some(value) = value {
                path.push_str(&format!("&{name}={}", segment(value)));
            }
        }
        path
    }

    async fn list(&self, client: &Client) -> anyhow::Result<RunFiles> {
        let found: RunFiles = client.get(&self.path(FilesFormat::List)).await?;
        if found.more {
            let why = format!(
                "more than {} files match: choose fewer with a GLOB or --task, or fetch one archive with --tar FILE",
                found.files.len()
            );
            return Err(Negative(why).into());
        }
        Ok(found)
    }

    /// The list, which has a file where one was asked for.
    async fn found(&self, client: &Client) -> anyhow::Result<RunFiles> {
        let found = self.list(client).await?;
        match (&self.glob, found.files.is_empty()) {
            (Some(glob), true) => Err(self.unmatched(glob).into()),
            _ => Ok(found),
        }
    }

    fn unmatched(&self, glob: &str) -> Negative {
        let run = &self.run;
        Negative(format!("no file matches {glob:?}; `cofferdam artifacts ls {run}` lists them"))
    }
}

fn ls(found: &RunFiles, as_json: bool) {
    if as_json {
        output::json(&json!({"tasks": found.tasks, "files": found.files, "more": found.more}));
        return;
    }
    let row = |file: &RunFile| {
        let digest: String = file.sha256.as_str().chars().take(12).collect();
        let path = match &file.target {
            Some(target) => format!("{} -> {target}", file.path),
            None if file.mode == ArtifactMode::Directory => format!("{}/", file.path),
            None => file.path.clone(),
        };
        let mode = file.mode.as_str().to_owned();
        vec![file.task.clone(), mode, file.size.to_string(), digest, path]
    };
    let columns = [
        usual("TASK").least(8),
        extra("MODE"),
        usual("BYTES"),
        extra("SHA256"),
        key("PATH").least(12),
    ];
    table::print(&columns, found.files.iter().map(row));
}

async fn get(
    client: &Client,
    request: &FileRequest,
    out: &Path,
    force: bool,
) -> anyhow::Result<()> {
    let found = request.found(client).await?;
    if found.files.is_empty() {
        return Err(Negative("the run left no files".to_owned()).into());
    }
    write(client, request, found, out, force).await
}

async fn write(
    client: &Client,
    request: &FileRequest,
    found: RunFiles,
    out: &Path,
    force: bool,
) -> anyhow::Result<()> {
    let directory = OutputDirectory::open(out, force)?;
    let all = planned(&found, &directory)?;
    let answer = client.open(&request.path(FilesFormat::Tar)).await?;
    let totals = unpack(answer, found, all, directory).await?;
    let files = if totals.files == 1 { "file" } else { "files" };
    let (count, bytes, named) = (totals.files, byte_count(totals.bytes), out.display());
    output::note(&format!("{count} {files}, {bytes}, in {named}"));
    if totals.outward > 0 {
        let outward = totals.outward;
        output::note(&format!(
            "{outward} links were left out: they lead out of the directory (`cofferdam artifacts ls` shows them)"
        ));
    }
    Ok(())
}

/// One archive, as it comes.
async fn archive(
    client: &Client,
    request: &FileRequest,
    format: FilesFormat,
    file: &Path,
    force: bool,
) -> anyhow::Result<()> {
    let is_stdout = file == Path::new("-");
    if is_stdout && std::io::stdout().is_terminal() {
        let why = "an archive is not for a terminal: name a file, or pipe it into a program";
        return Err(Misuse(why.to_owned()).into());
    }
    let target = Target { path: file, force };
    if !is_stdout {
        target.check()?;
    }
    let mut answer = client.open(&request.path(format)).await?;
    let mut draft = if is_stdout { None } else { Some(target.begin()?) };
    let mut bytes: u64 = 0;
    while let Some(piece) = answer.chunk().await.context("the archive broke off; ask again")? {
        bytes = bytes.saturating_add(u64::try_from(piece.len()).unwrap_or(u64::MAX));
        match draft.as_mut() {
            Some(draft) => draft.write(&piece)?,
            None if stdout::is_unread() => return Ok(()),
            None => output::raw(&piece),
        }
    }
    if let Some(draft) = draft {
        draft.commit()?;
        output::note(&format!("{} in {}", byte_count(bytes), file.display()));
    }
    Ok(())
}

async fn cat(client: &Client, request: &FileRequest) -> anyhow::Result<()> {
    let found = request.found(client).await?;
    let files: Vec<&RunFile> = found.files.iter().filter(|file| file.mode.has_content()).collect();
    if files.is_empty() {
        let glob = request.glob.as_deref().unwrap_or_default();
        return Err(Negative(format!("{glob:?} matches links or directories alone")).into());
    }
    for file in files {
        let mut answer = client.artifact_stream(&file.uri).await?;
        let mut verifier = FileVerifier::default();
        while let Some(piece) = answer.chunk().await.context("the file broke off; ask again")? {
            if stdout::is_unread() {
                return Ok(());
            }
            verifier.add(&piece);
            output::raw(&piece);
        }
        verifier.verify(file).context("what was printed is not the file")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_for_is_written_into_the_address() {
        let request = FileRequest {
            run: "rn_1".into(),
            glob: Some("a b/*".into()),
            task: Some("x&y".into()),
        };
        let path = request.path(FilesFormat::Tar);
        assert_eq!(path, "/api/runs/rn%5F1/files?format=tar&glob=a%20b%2F%2A&task=x%26y");
    }

    #[test]
    fn a_directory_that_has_something_is_kept_unless_forced() {
        let dir = tempfile::tempdir().unwrap();
        assert!(check_directory(dir.path(), false).is_ok());
        assert!(check_directory(&dir.path().join("new"), false).is_ok());
        std::fs::write(dir.path().join("a"), "").unwrap();
        assert!(check_directory(dir.path(), false).is_err());
        assert!(check_directory(dir.path(), true).is_ok());
        assert!(check_directory(&dir.path().join("a"), true).is_err(), "a file");
    }
}
