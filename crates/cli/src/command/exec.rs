//! `exec`: one command in one sandbox, now, with its own input, output and exit status.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use clap::Args;
use cofferdam_contracts::artifact::{ArtifactKind, ArtifactRow};
use cofferdam_contracts::duration::Duration;
use cofferdam_contracts::egress::Egress;
use cofferdam_contracts::id::TaskKey;
use cofferdam_contracts::limit::LimitKind;
use cofferdam_contracts::project::place;
use cofferdam_contracts::run::RunHeader;
use cofferdam_contracts::sandbox::{ErrCode, MAX_STREAM_BYTES};
use cofferdam_contracts::session::WipeView;
use cofferdam_contracts::step::{StepRow, StepStatus, TaskOutcome};
use cofferdam_contracts::user::UserName;
use cofferdam_sandbox::USUAL_PATH;
use cofferdam_server::recipes::RecipeImportResponse;
use serde_json::{Value, json};

use super::client::{Client, segment};
use super::connection::Connection;
use super::end_signal::EndSignals;
use super::exec_report::{ExecReport, StreamText, exit_of};
use super::exit::{Exit, Misuse};
use super::flag;
use super::follow::{FollowEnd, FollowOptions, follow};
use super::host_program::{self, HostProgram};
use super::locations::Locations;
use super::relay::Relay;
use super::{output, project, stdin};

#[derive(Debug, Args)]
pub(crate) struct ExecArgs {
    /// Root file system: host, dir:/path, or image:NAME (see `image`)
    #[arg(long, default_value = "host")]
    pub image: String,
    /// Weakest isolation class accepted: container, gvisor, microvm, remote
    #[arg(long)]
    pub isolation: Option<String>,
    /// Network: none, or exact names and mirrors (@pip, @npm, @cargo, @apt), comma separated
    #[arg(long, default_value = "none", value_name = "NAMES", value_parser = flag::egress)]
    pub egress: Egress,
    /// Memory in MiB
    #[arg(long)]
    pub mem: Option<u64>,
    /// CPUs, such as 0.5
    #[arg(long)]
    pub cpu: Option<f64>,
    /// Maximum number of processes
    #[arg(long)]
    pub pids: Option<u64>,
    /// Room for files that it writes, in MiB
    #[arg(long)]
    pub disk: Option<u64>,
    /// How long it may run, such as 90s; a plain number is seconds
    #[arg(long, default_value = "10m", value_name = "DURATION", value_parser = flag::seconds)]
    pub timeout: Duration,
    /// Host directory to work in, copy-on-write, at its own path and as /work; with the repository of a linked git worktree
    #[arg(long, value_name = "DIR")]
    pub work: Option<PathBuf>,
    /// Whom it runs as: NAME, UID, NAME:GROUP or UID:GID of the root file system; files of --work are that user's inside
    #[arg(long, value_name = "USER", value_parser = flag::user)]
    pub user: Option<UserName>,
    /// Another host directory, such as a toolchain in a home: copy-on-write at its own path, and in PATH as on this host
    #[arg(long, value_name = "DIR")]
    pub mount: Vec<PathBuf>,
    /// Globs of files to keep, relative to where it works
    #[arg(long, value_name = "GLOB")]
    pub keep: Vec<String>,
    /// Do not read standard input; otherwise a pipe or file is the command's input (text, at most 128 KiB)
    #[arg(long)]
    pub no_stdin: bool,
    /// One JSON object at the end instead of the command's output, which it has: at most 8 MiB of each stream
    #[arg(long)]
    pub json: bool,
    /// Program to run and its arguments, after `--`
    #[arg(required = true, last = true)]
    pub cmd: Vec<String>,
}

/// Where the command's input lies in its sandbox; no directory of the task's is there.
const STDIN: &str = "/run/cofferdam/stdin";

pub(crate) async fn exec(at: &Locations, args: &ExecArgs) -> anyhow::Result<Exit> {
    // Before anything starts: a Ctrl-C meanwhile simply ends this process.
    let input = if args.no_stdin { None } else { stdin::read()? };
    let recipe = recipe(args, input)?;
    let session = Connection::executing(at).await?;
    let outcome = once(&session.client, args, &recipe).await;
    let closed = session.close().await;
    let exit = outcome?;
    closed?;
    Ok(exit)
}

/// The command as a recipe, so that it leaves the same records as every other work.
fn recipe(args: &ExecArgs, input: Option<String>) -> anyhow::Result<Value> {
    let escape = |text: &str| text.replace("${", "$${");
    let mut task = json!({
        "name": "exec",
        "image": args.image,
        "exec": {"run": args.cmd.iter().map(|word| escape(word)).collect::<Vec<_>>(), "timeout": args.timeout, "egress": args.egress},
        "limits": {},
        "artifacts": args.keep,
    });
    let mut set = |pointer: &str, name: &str, value: Value| {
        if let Some(object) = task.pointer_mut(pointer).and_then(Value::as_object_mut) {
            object.insert(name.to_owned(), value);
        }
    };
    if let Some(mb) = args.mem {
        set("/limits", "memMB", json!(mb));
    }
    if let Some(cpu) = args.cpu {
        set("/limits", "cpu", json!(cpu));
    }
    if let Some(pids) = args.pids {
        set("/limits", "pids", json!(pids));
    }
    if let Some(mb) = args.disk {
        set("/limits", "diskMB", json!(mb));
    }
    if let Some(class) = &args.isolation {
        set("", "isolation", json!({"class_min": class}));
    }
    if let Some(user) = &args.user {
        set("", "user", json!(escape(user.as_str())));
    }
    let mut files = Vec::new();
    let mut show = |from: &str, to: &str| {
        files.push(json!({"from": escape(from), "to": escape(to), "access": "workspace-write"}));
    };
    if let Some(dir) = &args.work {
        let dir = named("--work", dir)?;
        let place = place(&dir);
        show(&dir, place);
        if let Some(repository) = project::repository(Path::new(&dir)) {
            show(&repository, &repository);
        }
        set("/exec", "workdir", json!(escape(place)));
    }
    for dir in &args.mount {
        let dir = named("--mount", dir)?;
        if place(&dir) != dir {
            let why = format!("--mount {dir}: a sandbox has its own; name a directory in it");
            return Err(Misuse(why).into());
        }
        show(&dir, &dir);
    }
    let env = mounted_env(&args.mount);
    if args.image == "host" && !env.is_empty() {
        let env = env.iter().map(|(name, value)| (*name, escape(value)));
        set("/exec", "env", json!(env.collect::<BTreeMap<_, _>>()));
    }
    if let Some(text) = input {
        files.push(json!({"text": escape(&text), "to": STDIN, "access": "read-only"}));
        set("/exec", "stdin", json!(STDIN));
    }
    set("", "files", json!(files));
    Ok(
        json!({"id": "exec", "v": "1", "caps": {"sandbox_minutes": 1500}, "plan": {"tasks": [task]}}),
    )
}

/// A directory of this host, as a recipe names it.
fn named(flag: &str, dir: &Path) -> anyhow::Result<String> {
    let found = dir.canonicalize().map_err(|e| Misuse(format!("{flag} {}: {e}", dir.display())))?;
    if !found.is_dir() {
        return Err(Misuse(format!("{flag} {}: not a directory", dir.display())).into());
    }
    let named = found.to_str().map(str::to_owned);
    named.ok_or_else(|| Misuse(format!("{flag} {}: its name is not UTF-8", dir.display())).into())
}

/// How programs of mounted directories are found, and what rustup's need.
fn mounted_env(mounts: &[PathBuf]) -> BTreeMap<&'static str, String> {
    let path = cofferdam_ambient::env::var("PATH").unwrap_or_default();
    let found = mounts.iter().filter_map(|dir| dir.canonicalize().ok());
    let dirs: Vec<PathBuf> = mounts.iter().cloned().chain(found).collect();
    let path = host_program::path_inside(&dirs, &path, USUAL_PATH).map(|path| ("PATH", path));
    let rustup = dirs.iter().rev().find(|dir| dir.ends_with(".rustup"));
    let rustup = rustup.map(|dir| ("RUSTUP_HOME", dir.display().to_string()));
    path.into_iter().chain(rustup).collect()
}

async fn once(client: &Client, args: &ExecArgs, recipe: &Value) -> anyhow::Result<Exit> {
    let imported: RecipeImportResponse = client
        .post("/api/recipes/import", &json!({"recipe": recipe, "origin": "command line"}))
        .await?;
    let key = cofferdam_ambient::random::secret_hex(16);
    // By its text: anybody of the tenant may import another one under this name meanwhile.
    let body = json!({
        "recipeRef": imported.recipe_ref, "recipeHash": imported.hash,
        "formData": {}, "opts": {"runKey": key},
    });
    let route = if args.json { "/api/run" } else { "/api/run?output=true" };
    let header: RunHeader = client.post(route, &body).await?;
    let run = header.run_id.as_str();
    let options = FollowOptions { yes: false, quiet: true, for_output: !args.json };
    if args.json {
        let followed = follow(client, run, options).await?;
        return match &followed {
            FollowEnd::Left(_) => Ok(followed.exit()),
            FollowEnd::Ended { header, asked } => {
                let exit = reported(client, header).await?;
                Ok(if asked.is_some() { followed.exit() } else { exit })
            }
        };
    }
    let relay = Relay::begin();
    let followed = tokio::select! {
        followed = follow(client, run, options) => followed?,
        never = relay.live(client, run) => match never {},
    };
    match &followed {
        FollowEnd::Left(_) => Ok(followed.exit()),
        FollowEnd::Ended { header, asked } => {
            // Our reader may take long for what is left.
            let mut signals = EndSignals::listen()?;
            let exit = tokio::select! {
                exit = finish(client, header, relay, args) => exit?,
                signal = signals.recv() => signal.exit(),
            };
            Ok(if asked.is_some() { followed.exit() } else { exit })
        }
    }
}

/// The command's newest attempt: one that was lost with its worker is started again.
fn attempt_of(steps: &[StepRow]) -> Option<(&StepRow, &TaskKey)> {
    steps.iter().filter_map(|step| Some((step, step.task_key.as_ref()?))).next_back()
}

/// Everything as one object, and the command's status.
async fn reported(client: &Client, header: &RunHeader) -> anyhow::Result<Exit> {
    let path = format!("/api/runs/{}", segment(header.run_id.as_str()));
    let steps: Vec<StepRow> = client.get(&format!("{path}/steps")).await?;
    let artifacts: Vec<ArtifactRow> = client.get(&format!("{path}/artifacts")).await?;
    let wipes: Vec<WipeView> = client.get(&format!("{path}/wipes")).await?;
    let (mut outcome, mut why) = (TaskOutcome::default(), None);
    let (mut stdout, mut stderr) = (StreamText::default(), StreamText::default());
    if let Some((task, key)) = attempt_of(&steps) {
        outcome = task.outcome()?.unwrap_or_default();
        why = task.error.as_deref();
        for log in artifacts.iter().filter(|row| row.task_key == *key) {
            match log.kind {
                ArtifactKind::Stdout => stdout = beginning(client, log).await?,
                ArtifactKind::Stderr => stderr = beginning(client, log).await?,
                _ => {}
            }
        }
    }
    let exit = exit_of(header.status, &outcome);
    let report = ExecReport::of(header, outcome, why, stdout, stderr).with_wipes(wipes);
    output::json(&serde_json::to_value(report)?);
    Ok(exit)
}

/// A stream as far as the object has it.
async fn beginning(client: &Client, log: &ArtifactRow) -> anyhow::Result<StreamText> {
    let bytes = client.artifact_begin(log, MAX_STREAM_BYTES).await?;
    let more = u64::try_from(log.size).unwrap_or(0).saturating_sub(MAX_STREAM_BYTES);
    Ok(StreamText { bytes, more })
}

/// The rest of the command's output, and its status; what the sandbox has to say besides goes to stderr.
async fn finish(
    client: &Client,
    header: &RunHeader,
    relay: Relay,
    args: &ExecArgs,
) -> anyhow::Result<Exit> {
    let run = header.run_id.as_str();
    let steps: Vec<StepRow> = client.get(&format!("/api/runs/{}/steps", segment(run))).await?;
    let Some((task, key)) = attempt_of(&steps) else {
        let why = header.error.as_deref().unwrap_or("it was canceled before it started");
        output::note(&format!("the command did not run: {why}"));
        return Ok(Exit::No);
    };
    let relayed = relay.finish(client, run, key.as_str()).await?;
    let outcome = task.outcome()?.unwrap_or_default();
    let (why, program) = (task.error.as_deref().unwrap_or(""), args.cmd.first());
    let program = program.map_or("", String::as_str);
    let ending = CommandEnd { why, program, is_whole: relayed.is_whole };
    if let Some(words) = besides(task.status, &outcome, &ending) {
        output::note(&words);
    }
    // PATH is that of this command: a client of another host's server learns nothing of that host.
    let path = cofferdam_ambient::env::var("PATH").unwrap_or_default();
    let absent = match is_unfound(&outcome, why) {
        true => HostProgram::on_path(program, &path),
        false => HostProgram::of(&relayed.last_words, &path),
    };
    if let Some(absent) = absent.filter(|_| args.image == "host" && client.is_on_this_host()) {
        output::note(&absent.for_exec());
    }
    Ok(exit_of(header.status, &outcome))
}

/// What shells answer where no program was started.
const UNSTARTED: [i32; 2] = [126, 127];

/// What is known of a command's end beside its outcome.
#[derive(Debug, Clone, Copy)]
struct CommandEnd<'a> {
    why: &'a str,
    program: &'a str,
    /// All of its output was printed.
    is_whole: bool,
}

/// Whether its program is not there.
fn is_unfound(outcome: &TaskOutcome, why: &str) -> bool {
    outcome.exit == Some(127) && why.contains("was not found in PATH")
}

/// What a person should know that the command itself did not say. Pure.
fn besides(status: StepStatus, outcome: &TaskOutcome, ending: &CommandEnd<'_>) -> Option<String> {
    let CommandEnd { why, program, is_whole } = *ending;
    if status == StepStatus::Canceled {
        return Some("canceled; its sandbox was ended".to_owned());
    }
    let reached = &outcome.limits_reached;
    match outcome.err_code {
        // What it met is no reason for its status: a command may survive a limit, and not know that output was left out.
        Some(ErrCode::None | ErrCode::CmdNonzero) if !reached.is_empty() => {
            let kinds: Vec<&str> = reached.iter().map(|kind| kind.as_str()).collect();
            let said = format!("limit reached: {}", kinds.join(", "));
            let said = if why.is_empty() { said } else { format!("{said}: {why}") };
            Some(with_remedies(said, reached, is_whole))
        }
        Some(ErrCode::None) => None,
        // A program that ended with such a status itself, such as a shell, has said why.
        Some(ErrCode::CmdNonzero)
            if outcome.exit.is_some_and(|exit| UNSTARTED.contains(&exit))
                && !why.starts_with("exit status") =>
        {
            Some(match is_unfound(outcome, why) {
                true => format!("{program}: command not found in the sandbox"),
                false => format!("{program}: not started: {why}"),
            })
        }
        Some(ErrCode::CmdNonzero) => None,
        None => Some(format!(
            "the command has no result: {}",
            if why.is_empty() { "its run ended first" } else { why }
        )),
        Some(code) => {
            let said = match why.is_empty() {
                true => code.as_str().to_owned(),
                false => format!("{}: {why}", code.as_str()),
            };
            Some(with_remedies(said, reached, is_whole))
        }
    }
}

/// The words, and what to do about each limit.
fn with_remedies(said: String, reached: &[LimitKind], is_whole: bool) -> String {
    let remedies = reached.iter().map(|kind| remedy(*kind, is_whole));
    std::iter::once(said.as_str()).chain(remedies).collect::<Vec<_>>().join("; ")
}

fn remedy(kind: LimitKind, is_whole: bool) -> &'static str {
    match kind {
        LimitKind::Wall => "--timeout raises it",
        LimitKind::Memory => "--mem raises it",
        LimitKind::Pids => "--pids raises it",
        LimitKind::Disk => "--disk raises it",
        LimitKind::Nofile => "fewer processes (--pids) may open more files each",
        LimitKind::Output if is_whole => "all of it was shown",
        LimitKind::Output => "the rest is lost: write it to a file and --keep that",
        LimitKind::Artifacts => "--keep fewer files",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn e2_what_the_command_could_not_say_is_said_and_never_a_lone_colon() {
        let step = |status: &str, output: Value, error: Value| {
            let status = StepStatus::parse(status).unwrap();
            let outcome: TaskOutcome = serde_json::from_value(output).unwrap();
            let why = error.as_str().unwrap_or("");
            besides(status, &outcome, &CommandEnd { why, program: "nosuch", is_whole: false })
        };
        let unstarted = json!({"errCode": "CMD_NONZERO", "exit": 127});
        assert_eq!(
            step("failed", unstarted.clone(), json!("\"nosuch\" was not found in PATH")).unwrap(),
            "nosuch: command not found in the sandbox"
        );
        assert_eq!(step("failed", unstarted, json!("exit status 127")), None);
        assert_eq!(step("ok", json!({"errCode": "NONE", "exit": 0}), Value::Null), None);
        let cut = json!({"errCode": "NONE", "exit": 0, "limitsReached": ["output"]});
        assert_eq!(
            step("ok", cut.clone(), json!("12 bytes of stdout were dropped")).unwrap(),
            "limit reached: output: 12 bytes of stdout were dropped; the rest is lost: write it to a file and --keep that"
        );
        let words = step("ok", cut, Value::Null).unwrap();
        assert!(words.starts_with("limit reached: output; "), "{words}");
        let late = json!({"errCode": "TIMEOUT", "limitsReached": ["wall"]});
        assert_eq!(
            step("failed", late, json!("late")).unwrap(),
            "TIMEOUT: late; --timeout raises it"
        );
        for (status, output) in
            [("canceled", json!({})), ("running", json!({})), ("failed", json!({"errCode": "OOM"}))]
        {
            let said = step(status, output, Value::Null).unwrap();
            assert!(!said.ends_with(':') && said.len() > 2, "{said}");
        }
    }
}
