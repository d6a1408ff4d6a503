//! `exec`: one command in one sandbox, now, with its own input, output and exit status.

use std::convert::Infallible;

use cofferdam_contracts::artifact::{ArtifactKind, ArtifactRow};
use cofferdam_contracts::id::TaskKey;
use cofferdam_contracts::limit::LimitKind;
use cofferdam_contracts::run::RunHeader;
use cofferdam_contracts::sandbox::{ErrCode, MAX_STREAM_BYTES};
use cofferdam_contracts::session::WipeView;
use cofferdam_contracts::step::{StepRow, StepStatus, TaskOutcome};
use cofferdam_server::recipes::RecipeImportResponse;
use serde_json::{Value, json};

use super::client::{Client, segment};
use super::connection::Connection;
use super::end_signal::EndSignals;
use super::exec_args::ExecArgs;
use super::exec_report::{ExecReport, StreamText, by_flags, exit_of};
use super::exit::Exit;
use super::follow::{FollowEnd, FollowOptions, follow};
use super::host_program::HostProgram;
use super::input_relay::InputRelay;
use super::locations::Locations;
use super::raw_terminal::RawTerminal;
use super::relay::{Relay, RelayStyle};
use super::stdin::{self, Stdin, StdinChoice};
use super::{env_arg, exec_recipe, output};

pub(crate) async fn exec(at: &Locations, args: &ExecArgs) -> anyhow::Result<Exit> {
    // Before anything starts: a Ctrl-C meanwhile simply ends this process.
    let wanted = match args {
        ExecArgs { no_stdin: true, .. } => StdinChoice::Nothing,
        ExecArgs { tty: true, .. } => StdinChoice::Terminal,
        ExecArgs { interactive: true, .. } => StdinChoice::Stream,
        _ => StdinChoice::Usual,
    };
    let env = env_arg::variables(&args.env_file, &args.env)?;
    let input = stdin::read(wanted)?;
    let recipe = exec_recipe::of(args, env, &input)?;
    let input = match input {
        Stdin::Nothing | Stdin::Text(_) => None,
        Stdin::Stream(read) => Some(InputRelay::Stream(read)),
        Stdin::Terminal => Some(InputRelay::Terminal),
    };
    let session = Connection::executing(at).await?;
    let outcome = once(&session.client, args, &recipe, input).await;
    let closed = session.close().await;
    let exit = outcome?;
    closed?;
    Ok(exit)
}

async fn once(
    client: &Client,
    args: &ExecArgs,
    recipe: &Value,
    input: Option<InputRelay>,
) -> anyhow::Result<Exit> {
    let imported: RecipeImportResponse = client
        .post("/api/recipes/import", &json!({"recipe": recipe, "origin": "command line"}))
        .await?;
    let key = cofferdam_ambient::random::secret_hex(16);
    // By its text: anybody of the tenant may import another one under this name meanwhile.
    let body = json!({
        "recipeRef": imported.recipe_ref, "recipeHash": imported.hash,
        "formData": {}, "opts": {"runKey": key},
    });
    // Who sends input reads the output, too: the server knows by it that the client is there.
    let is_fed = !args.json || input.is_some();
    let route = if is_fed { "/api/run?output=true" } else { "/api/run" };
    let header: RunHeader = client.post(route, &body).await?;
    let run = header.run_id.as_str();
    let options =
        FollowOptions { yes: false, quiet: true, for_output: !args.json, no_progress: true };
    if args.json {
        let talk = async {
            match is_fed {
                true => talk(client, run, &Relay::begin(RelayStyle::Silent), input).await,
                false => std::future::pending().await,
            }
        };
        let followed = tokio::select! {
            followed = follow(client, run, options) => followed?,
            never = talk => match never {},
        };
        return match &followed {
            FollowEnd::Left(_) => Ok(followed.exit()),
            FollowEnd::Ended { header, asked } => {
                let exit = reported(client, header).await?;
                Ok(if asked.is_some() { followed.exit() } else { exit })
            }
        };
    }
    let (raw, relay) = match input {
        Some(InputRelay::Terminal) => (Some(RawTerminal::take()?), Relay::begin(RelayStyle::Raw)),
        _ => (None, Relay::begin(RelayStyle::Safe)),
    };
    let followed = tokio::select! {
        followed = follow(client, run, options) => followed?,
        never = talk(client, run, &relay, input) => match never {},
    };
    match &followed {
        FollowEnd::Left(_) => Ok(followed.exit()),
        FollowEnd::Ended { header, asked } => {
            // Our reader may take long for what is left.
            let mut signals = EndSignals::listen()?;
            let exit = tokio::select! {
                exit = finish(client, header, CommandTerminal { relay, raw }, args) => exit?,
                signal = signals.recv() => signal.exit(),
            };
            Ok(if asked.is_some() { followed.exit() } else { exit })
        }
    }
}

/// Where the command's output is shown, and the terminal that it has of us.
struct CommandTerminal {
    relay: Relay,
    raw: Option<RawTerminal>,
}

/// Carries both directions. Never ends: it is dropped once the run is over.
async fn talk(client: &Client, run: &str, relay: &Relay, input: Option<InputRelay>) -> Infallible {
    let input = async {
        match input {
            Some(input) => input.live(client, run).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        never = relay.live(client, run) => never,
        never = input => never,
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
    let report = ExecReport::of(header, outcome, why, stdout, stderr);
    let report = report.with_artifacts(&artifacts).with_wipes(wipes);
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
    shown: CommandTerminal,
    args: &ExecArgs,
) -> anyhow::Result<Exit> {
    let CommandTerminal { relay, raw } = shown;
    let run = header.run_id.as_str();
    let steps: Vec<StepRow> = client.get(&format!("/api/runs/{}/steps", segment(run))).await?;
    let Some((task, key)) = attempt_of(&steps) else {
        drop(raw);
        let why = header.error.as_deref().unwrap_or("it was canceled before it started");
        output::note(&format!("the command did not run: {why}"));
        return Ok(Exit::No);
    };
    let relayed = relay.finish(client, run, key.as_str()).await?;
    // What is said from here on are lines of ours.
    drop(raw);
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
                false => format!("{}: {}", code.as_str(), by_flags(why)),
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
