//! `dispatch`: agents that are sent off.

use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use cofferdam_ambient::clock::{self, Stopwatch};
use cofferdam_contracts::dispatch::{
    DispatchOutput, DispatchStatus, DispatchTokens, DispatchView, MAX_PROMPT_BYTES, MAX_SPEC_BYTES,
    PruneResponse, check_spec,
};
use cofferdam_contracts::id::DispatchId;
use serde_json::{Map, Value, json};

use super::apply::commit_of;
use super::client::{Client, segment};
use super::connection::{Connection, within};
use super::dispatch_args::{
    DispatchArgs, DispatchCommand, ListArgs, OneArgs, OutputArgs, PollArgs, SpawnArgs, TokensArgs,
    WaitArgs,
};
use super::dispatch_import::{self, import};
use super::dispatch_show::{show, table};
use super::exit::{Exit, Misuse, Negative};
use super::locations::Locations;
use super::outfile::Target;
use super::output;
use super::project::repository;
use super::table::{self, extra, key, usual};

/// How long `spawn` waits for the dispatch's process: a start takes 50 ms.
const START: Duration = Duration::from_millis(1_500);
/// Between two looks for it.
const LOOK: Duration = Duration::from_millis(25);
/// One look of `wait`: the API waits that long at most.
const LONG_POLL_S: u64 = 30;

/// Does one command; what is wrong on this side is said before anything is started.
pub(crate) async fn dispatch(at: &Locations, args: &DispatchArgs) -> anyhow::Result<Exit> {
    let reading = Connection::reading(at);
    match &args.command {
        DispatchCommand::Spawn(args) => {
            let body = request(args)?;
            within(reading, async |session| spawn(session, args, &body).await).await
        }
        DispatchCommand::Status(one) => {
            known(&one.id)?;
            within(reading, async |session| status(&session.client, one).await).await
        }
        DispatchCommand::List(args) => {
            within(reading, async |session| list(&session.client, args).await).await
        }
        DispatchCommand::Poll(args) => {
            known(&args.one.id)?;
            free(&args.output)?;
            within(reading, async |session| poll(&session.client, args).await).await
        }
        DispatchCommand::Wait(args) => {
            known(&args.id)?;
            free(&args.output)?;
            // Who waits without a server would wait for ever, so that one executes.
            let executing = Connection::executing(at);
            within(executing, async |session| wait(&session.client, args).await).await
        }
        DispatchCommand::Kill(one) => {
            known(&one.id)?;
            within(reading, async |session| kill(&session.client, one).await).await
        }
        DispatchCommand::Prune { older_than, json } => {
            within(reading, async |session| prune(&session.client, older_than.s(), *json).await)
                .await
        }
        DispatchCommand::Tokens(args) => {
            args.id.as_deref().map_or(Ok(()), known)?;
            within(reading, async |session| tokens(&session.client, args).await).await
        }
        DispatchCommand::Retry(one) => {
            known(&one.id)?;
            within(reading, async |session| retry(&session.client, one).await).await
        }
        DispatchCommand::Import { file, json } => {
            let rows = dispatch_import::rows(file)?;
            within(reading, async |session| import(&session.client, &rows, *json).await).await
        }
    }
}

/// An id that cannot be one's is not found either.
fn known(id: &str) -> anyhow::Result<()> {
    match DispatchId::parse(id) {
        Ok(_) => Ok(()),
        Err(error) => Err(Negative(format!("dispatch not found: {error}")).into()),
    }
}

async fn status(client: &Client, one: &OneArgs) -> anyhow::Result<Exit> {
    show(&view(client, &one.id, 0).await?, one.json);
    Ok(Exit::Ok)
}

async fn poll(client: &Client, args: &PollArgs) -> anyhow::Result<Exit> {
    let view = view(client, &args.one.id, 0).await?;
    written(client, &view, &args.output).await?;
    told(&view, args.one.json);
    Ok(Exit::Ok)
}

/// Its status and, beside that, why it is no better.
fn told(view: &DispatchView, as_json: bool) {
    if as_json {
        return show(view, true);
    }
    output::line(view.status.as_str());
    let effective = view.sandbox_effective.as_ref();
    if let Some(cause) = effective.and_then(|effective| effective.get("cause")?.as_str()) {
        output::note(cause);
    }
}

async fn kill(client: &Client, one: &OneArgs) -> anyhow::Result<Exit> {
    let path = format!("/api/dispatches/{}/kill", segment(&one.id));
    let view: DispatchView = client.post(&path, &json!({})).await?;
    if one.json {
        show(&view, true)
    } else {
        output::line("killed")
    }
    Ok(Exit::Ok)
}

async fn retry(client: &Client, one: &OneArgs) -> anyhow::Result<Exit> {
    let path = format!("/api/dispatches/{}/retry", segment(&one.id));
    let view: DispatchView = client.post(&path, &json!({})).await?;
    match one.json {
        // Both orchestrators' names; a retry starts at once.
        true => output::json(&json!({"id": view.id, "pid": view.pid, "new_id": view.id,
            "attempt": view.retry_count, "backoff_ms": 0})),
        false => output::line(view.id.as_str()),
    }
    Ok(Exit::Ok)
}

async fn prune(client: &Client, older_than_s: u64, as_json: bool) -> anyhow::Result<Exit> {
    let body = json!({"older_than_sec": older_than_s});
    let pruned: PruneResponse = client.post("/api/dispatches/prune", &body).await?;
    match as_json {
        true => output::json(&serde_json::to_value(&pruned)?),
        false => output::line(&format!("{} pruned", pruned.pruned)),
    }
    Ok(Exit::Ok)
}

async fn view(client: &Client, id: &str, wait_s: u64) -> anyhow::Result<DispatchView> {
    client.get(&format!("/api/dispatches/{}?timeoutS={wait_s}", segment(id))).await
}

/// What is sent; everything that can be wrong about it is looked at here first.
fn request(args: &SpawnArgs) -> anyhow::Result<Value> {
    let file = args.prompt_file.display();
    let prompt =
        std::fs::read(&args.prompt_file).with_context(|| format!("--prompt-file {file}"))?;
    if prompt.len() > MAX_PROMPT_BYTES {
        anyhow::bail!("--prompt-file {file}: more than {MAX_PROMPT_BYTES} bytes");
    }
    let prompt =
        String::from_utf8(prompt).with_context(|| format!("--prompt-file {file}: not UTF-8"))?;
    if prompt.is_empty() {
        anyhow::bail!("--prompt-file {file}: the file is empty; write the prompt into it");
    }
    let project = directory(&args.project)?;
    let mut body = Map::new();
    let mut set = |name: &str, value: Value| body.insert(name.to_owned(), value);
    set("agent_type", json!(args.agent_type));
    set("prompt", json!(prompt));
    set("prompt_file", json!(absolute(&args.prompt_file)));
    set("project_dir", json!(project));
    set("project_at", json!(args.project_at));
    if args.worktree {
        let named = repository(Path::new(&project));
        let why = "--worktree: the project is not a linked git worktree whose repository names it; see `git worktree list`";
        set("worktree_of", json!(named.ok_or_else(|| Misuse(why.into()))?));
    }
    set("sandbox", json!(args.sandbox));
    set("lenient_spec", json!(args.lenient_spec));
    set("enforce", json!(args.enforce));
    set("scheduled", json!(args.scheduled));
    if let Some(commit) = &args.commit {
        let commit = match args.repo_url {
            // Of a repository that is not here only an id is known.
            Some(_) => commit.clone(),
            None => commit_of(&args.project, commit)?,
        };
        let path = args.repo_url.is_none().then_some(&project);
        let fields =
            [("path", json!(path)), ("url", json!(args.repo_url)), ("commit", json!(commit))];
        let given = fields.into_iter().filter(|(_, value)| !value.is_null());
        set("repo", given.map(|(name, value)| (name.to_owned(), value)).collect());
    }
    let texts = [
        ("name", args.name.clone()),
        ("model", args.model.clone()),
        ("agent_program", (args.agent != "auto").then(|| absolute(Path::new(&args.agent)))),
        ("scope_id", args.scope_id.clone()),
        ("output_file", args.output.as_deref().map(absolute)),
    ];
    for (name, value) in texts {
        if let Some(value) = value {
            set(name, json!(value));
        }
    }
    if let Some(parent) = &args.parent_id {
        known(parent)?;
        set("parent_id", json!(parent));
    }
    if let Some(timeout) = args.timeout {
        set("timeout_sec", json!(timeout.s()));
    }
    if let Some(spec) = &args.sandbox_spec {
        set("sandbox_spec", policy(spec, args.lenient_spec)?);
    }
    if !args.cmd.is_empty() {
        if args.agent_type != "command" {
            return Err(Misuse("a command after -- requires --type=command".into()).into());
        }
        set("cmd", json!(args.cmd));
    }
    Ok(Value::Object(body))
}

fn directory(path: &Path) -> anyhow::Result<String> {
    let shown = path.display();
    let real = path.canonicalize().with_context(|| format!("--project {shown}"))?;
    if !real.is_dir() {
        anyhow::bail!("--project {shown}: not a directory");
    }
    real.into_os_string()
        .into_string()
        .map_err(|_| anyhow::anyhow!("--project {shown}: the path is not UTF-8"))
}

fn absolute(path: &Path) -> String {
    let whole = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    whole.to_string_lossy().into_owned()
}

/// A policy, inline or in a file, held against its schema.
fn policy(given: &str, lenient: bool) -> anyhow::Result<Value> {
    let misuse = |why: String| Misuse(format!("--sandbox-spec: {why}"));
    let text = match given.strip_prefix('@') {
        None => given.to_owned(),
        Some(path) => {
            let found =
                std::fs::metadata(path).with_context(|| format!("--sandbox-spec {given}"))?;
            if found.len() > u64::try_from(MAX_SPEC_BYTES).unwrap_or(u64::MAX) {
                return Err(misuse(format!("more than {MAX_SPEC_BYTES} bytes")).into());
            }
            std::fs::read_to_string(path).with_context(|| format!("--sandbox-spec {given}"))?
        }
    };
    if text.len() > MAX_SPEC_BYTES {
        return Err(misuse(format!("more than {MAX_SPEC_BYTES} bytes")).into());
    }
    let value: Value = serde_json::from_str(&text).map_err(|e| misuse(format!("no JSON: {e}")))?;
    check_spec(&value, lenient).map_err(|refusal| misuse(refusal.message))?;
    Ok(value)
}

async fn spawn(session: &Connection, args: &SpawnArgs, body: &Value) -> anyhow::Result<Exit> {
    let client = &session.client;
    let mut made: DispatchView = client.post("/api/dispatches", body).await?;
    if session.is_local() {
        output::note(
            "no server runs; the dispatch starts with the next `cofferdam up` or `dispatch wait`",
        );
    }
    // Who looks next should find it running.
    let waited = Stopwatch::start();
    while !args.scheduled
        && !session.is_local()
        && made.pid.is_none()
        && !made.status.is_terminal()
        && waited.elapsed() < START
    {
        clock::sleep(LOOK).await;
        made = view(client, made.id.as_str(), 0).await?;
    }
    let id = &made.id;
    match (args.json, args.scheduled) {
        (false, _) => output::line(id.as_str()),
        // Orchestrators read exactly these fields.
        (true, false) => output::json_value(&json!({"id": id, "pid": made.pid})),
        (true, true) => {
            output::json_value(&json!({"id": id, "pid": made.pid, "job_id": id, "scheduled": true}))
        }
    }
    Ok(Exit::Ok)
}

async fn list(client: &Client, args: &ListArgs) -> anyhow::Result<Exit> {
    let mut path = format!("/api/dispatches?limit={}&active={}", args.limit, args.active);
    for (name, value) in [("status", &args.status), ("scope", &args.scope_id)] {
        if let Some(value) = value {
            path.push_str(&format!("&{name}={}", segment(value)));
        }
    }
    let found: Vec<DispatchView> = client.get(&path).await?;
    match args.json {
        true => output::json_rows("dispatches", serde_json::to_value(&found)?),
        false => table(&found),
    }
    Ok(Exit::Ok)
}

async fn wait(client: &Client, args: &WaitArgs) -> anyhow::Result<Exit> {
    let waited = Stopwatch::start();
    let limit = args.timeout.map(|timeout| Duration::from_millis(timeout.ms()));
    let view = loop {
        let left = limit.map(|limit| limit.saturating_sub(waited.elapsed()));
        let step =
            left.map_or(LONG_POLL_S, |left| left.as_secs().saturating_add(1).min(LONG_POLL_S));
        let step = if left.is_some_and(|left| left.is_zero()) { 0 } else { step };
        let view = view(client, &args.id, step).await?;
        if view.status.is_terminal() {
            break view;
        }
        if step == 0 {
            let why = format!("dispatch {} is still {}", view.id, view.status.as_str());
            return Err(Negative(why).into());
        }
    };
    written(client, &view, &args.output).await?;
    told(&view, args.json);
    Ok(if view.status == DispatchStatus::Completed { Exit::Ok } else { Exit::No })
}

fn target(args: &OutputArgs) -> Option<Target<'_>> {
    args.output.as_deref().map(|path| Target { path, force: args.force })
}

/// Before anybody waits for hours.
fn free(args: &OutputArgs) -> anyhow::Result<()> {
    target(args).map_or(Ok(()), |target| target.check())
}

/// What a dispatch that is over said goes to the file that this very call names, and to no other: the
/// record's `output_file` is whatever the one who spawned it liked.
async fn written(client: &Client, view: &DispatchView, args: &OutputArgs) -> anyhow::Result<()> {
    let Some(target) = target(args) else {
        if view.output_file.is_some() && view.status.is_terminal() {
            output::note("the output is written only to the file of --output");
        }
        return Ok(());
    };
    if !view.status.is_terminal() {
        output::note("the dispatch is still live: --output was not written");
        return Ok(());
    }
    let path = format!("/api/dispatches/{}/output", segment(view.id.as_str()));
    let found: DispatchOutput = client.get(&path).await?;
    let Some(uri) = found.uri else {
        output::note("the dispatch left no output: --output was not written");
        return Ok(());
    };
    target.write(&client.artifact(&uri).await?)
}

async fn tokens(client: &Client, args: &TokensArgs) -> anyhow::Result<Exit> {
    let given = [("id", &args.id), ("scope", &args.scope_id)];
    let query: Vec<String> = given
        .into_iter()
        .filter_map(|(name, value)| Some(format!("{name}={}", segment(value.as_deref()?))))
        .collect();
    let path = format!("/api/dispatches/tokens?{}", query.join("&"));
    let sums: DispatchTokens = client.get(&path).await?;
    if args.json {
        // With the names that other orchestrators have for them.
        let value = json!({
            "dispatches": sums.dispatches, "in_tokens": sums.in_tokens, "out_tokens": sums.out_tokens,
            "cache_hits": sums.cache_hits, "total": sums.total, "input_tokens": sums.in_tokens,
            "output_tokens": sums.out_tokens, "total_tokens": sums.total,
        });
        output::json(&value);
        return Ok(Exit::Ok);
    }
    let row = [sums.dispatches, sums.in_tokens, sums.out_tokens, sums.cache_hits, sums.total];
    let heads = [usual("DISPATCHES"), usual("IN"), usual("OUT"), extra("CACHE HITS"), key("TOTAL")];
    table::print(&heads, [row.iter().map(ToString::to_string).collect()]);
    Ok(Exit::Ok)
}
