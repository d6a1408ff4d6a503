//! `run`: submit, follow, report.

use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;
use cofferdam_ambient::random::Ids;
use cofferdam_contracts::artifact::{ArtifactKind, ArtifactRow};
use cofferdam_contracts::duration::Duration;
use cofferdam_contracts::form;
use cofferdam_contracts::id::TaskKey;
use cofferdam_contracts::policy::EgressSnapshot;
use cofferdam_contracts::recipe::{Recipe, RecipeRef};
use cofferdam_contracts::run::{ExecutionMode, RunHeader};
use cofferdam_contracts::session::WipeView;
use cofferdam_contracts::step::{StepRow, shown_name};
use cofferdam_contracts::tree_upload;
use cofferdam_server::recipes::RecipeImportResponse;
use serde_json::{Map, Value, json};

use super::client::{ApiRefusal, Client, segment};
use super::connection::Connection;
use super::exit::{Exit, Misuse, Negative};
use super::flag;
use super::follow::{FollowEnd, FollowOptions, follow};
use super::host_program::HostProgram;
use super::locations::Locations;
use super::progress::summary;
use super::table::{self, extra, key, usual};
use super::tree_transfer::{TransferOptions, TreeReceipt};
use super::{
    artifact_notes, artifacts, failure, output, recipe_lookup, submission, test_reports,
    tree_transfer,
};

/// Artifacts that a summary names: a run may have thousands.
const MAX_ARTIFACTS: usize = 20;

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// A recipe file, or the id (or id@v) of an imported recipe
    pub recipe: String,
    /// An input of the recipe's form, as name=value; values are JSON or text; @./DIR or @/DIR sends a directory to the server
    #[arg(short, long = "input", value_name = "NAME=VALUE")]
    pub inputs: Vec<String>,
    /// Approve the plan without asking
    #[arg(long, short = 'y')]
    pub yes: bool,
    /// One JSON object on stdout at the end
    #[arg(long)]
    pub json: bool,
    /// Show progress as lines that stay, as off a terminal, with TERM=dumb or in CI
    #[arg(long)]
    pub no_progress: bool,
    /// Print the ids and return at once
    #[arg(long)]
    pub detach: bool,
    /// Idempotency key: repeating a start with the same key returns the same run; default: a fresh key
    #[arg(long, value_name = "TEXT")]
    pub run_key: Option<String>,
    /// Wall time of the whole run, such as 10m
    #[arg(long, value_name = "DURATION", value_parser = flag::wall)]
    pub timeout: Option<Duration>,
    /// Run after interactive work
    #[arg(long)]
    pub batch: bool,
    /// Where its sandboxes are to be; default: the worker's own
    #[arg(long, value_name = "MODE", value_parser = flag::one_of(ExecutionMode::ALL, ExecutionMode::as_str))]
    pub execution_mode: Option<String>,
    /// At its end, write the files that its tasks left into DIR, which is new or empty: DIR/PATH, or DIR/TASK/PATH with several tasks
    #[arg(long, value_name = "DIR", conflicts_with = "detach")]
    pub keep: Option<PathBuf>,
    /// With --keep: replace files that exist
    #[arg(long, requires = "keep")]
    pub force: bool,
}

impl RunArgs {
    /// Of one commit, in the output of a push.
    pub(crate) fn of_commit(recipe: &str, inputs: Vec<String>) -> Self {
        Self {
            recipe: recipe.to_owned(),
            inputs,
            yes: false,
            json: false,
            no_progress: true,
            detach: false,
            run_key: None,
            timeout: None,
            batch: false,
            execution_mode: None,
            keep: None,
            force: false,
        }
    }
}

pub(crate) async fn run(at: &Locations, args: &RunArgs) -> anyhow::Result<Exit> {
    // What the command line alone can get wrong is said before anything starts.
    let recipe = local_recipe(&args.recipe)?;
    let inputs = parse_inputs(&args.inputs)?;
    if let Some(recipe) = &recipe {
        check_names(&recipe.form_schema(), &inputs)?;
    }
    tree_transfer::check(&inputs)?;
    if let Some(dir) = &args.keep {
        artifacts::check_directory(dir, args.force)?;
    }
    let session = if args.detach {
        Connection::reading(at).await?
    } else {
        Connection::executing(at).await?
    };
    let outcome = submit_and_follow(&session, args, recipe, inputs).await;
    let closed = session.close().await;
    let exit = outcome?;
    closed?;
    Ok(exit)
}

async fn submit_and_follow(
    session: &Connection,
    args: &RunArgs,
    recipe: Option<Recipe>,
    inputs: Map<String, Value>,
) -> anyhow::Result<Exit> {
    let client = &session.client;
    let title = recipe.as_ref().and_then(|recipe| recipe.title.clone());
    let submitted = submit(client, args, recipe, inputs).await;
    let (header, sent) = submitted.inspect_err(|error| note_program(client, error))?;
    if args.detach {
        let mut ids = json!({"schemaVersion": 1, "runId": header.run_id, "workflowID": header.workflow_id, "status": header.status});
        if args.json {
            add_sent(&mut ids, &sent);
            output::json(&ids)
        } else {
            output::line(header.run_id.as_str())
        }
        session.note_if_idle().await;
        return Ok(Exit::Ok);
    }
    if !args.json {
        output::note(&format!("run {} of {}", header.run_id, asked(&header, title.as_deref())));
    }
    let options = FollowOptions {
        yes: args.yes,
        quiet: args.json,
        for_output: false,
        no_progress: args.no_progress,
    };
    let followed = follow(client, header.run_id.as_str(), options).await?;
    match &followed {
        FollowEnd::Ended { header, .. } => {
            report(client, header, args.json, &sent).await?;
            if !args.json {
                test_reports::print(client, header).await?;
            }
            if let Some(dir) = &args.keep {
                artifacts::keep(client, header.run_id.as_str(), dir, args.force).await?;
            }
        }
        FollowEnd::Left(_) if session.is_local() => {
            output::note("no worker runs; start `cofferdam up` to execute it");
        }
        FollowEnd::Left(_) => {}
    }
    Ok(followed.exit())
}

/// The recipe behind a file name; `None` where the argument is an id.
fn local_recipe(named: &str) -> anyhow::Result<Option<Recipe>> {
    let path = Path::new(named);
    // Beside a directory `a` there may be an imported recipe `a`.
    let is_path = named.contains('/') || named.starts_with('.');
    if named.is_empty() || (is_path && path.is_dir()) {
        let why = format!(
            "{named:?} is not a recipe: give a recipe file, such as cofferdam.yaml, or the id of an imported recipe"
        );
        return Err(Misuse(why).into());
    }
    let is_file = path.is_file()
        || named.contains('/')
        || named.ends_with(".yaml")
        || named.ends_with(".yml");
    if !is_file {
        return Ok(None);
    }
    let text =
        std::fs::read_to_string(path).with_context(|| format!("cannot read the recipe {named}"))?;
    Ok(Some(Recipe::from_yaml(named, &text)?))
}

/// What a run is of, in words: its recipe, with the title where that is known. The intent of a recipe's run has a digest for a name.
/// Pure.
fn asked(header: &RunHeader, title: Option<&str>) -> String {
    match (&header.recipe_ref, title) {
        (Some(recipe), Some(title)) => format!("{}@{} ({title})", recipe.id, recipe.v),
        (Some(recipe), None) => format!("{}@{}", recipe.id, recipe.v),
        (None, _) => format!("intent {}", header.intent_id),
    }
}

/// `name=value`: JSON where it parses as such, text otherwise.
fn parse_inputs(pairs: &[String]) -> anyhow::Result<Map<String, Value>> {
    let mut inputs = Map::new();
    for pair in pairs {
        let (name, value) = pair
            .split_once('=')
            .filter(|(name, _)| !name.is_empty())
            .ok_or_else(|| Misuse(format!("-i {pair:?}: write name=value")))?;
        let value = Value::String(value.to_owned());
        if inputs.insert(name.to_owned(), value).is_some() {
            return Err(Misuse(format!("-i {name} was given twice; give it once")).into());
        }
    }
    Ok(inputs)
}

/// An input that the form does not declare is a typing mistake: a form that takes any name says so.
fn check_names(form: &Value, inputs: &Map<String, Value>) -> Result<(), Misuse> {
    let mut wrong = inputs.keys().filter_map(|name| Some((name, form::undeclared(form, name)?)));
    match wrong.next() {
        Some((name, why)) => Err(Misuse(format!("-i {name}: {why}"))),
        None => Ok(()),
    }
}

/// Where this host has a program that a start was refused for.
fn note_program(client: &Client, error: &anyhow::Error) {
    let details = error.downcast_ref::<ApiRefusal>().and_then(|refusal| refusal.details.as_ref());
    let program = details.and_then(|details| details.get("program")?.as_str());
    let path = cofferdam_ambient::env::var("PATH").unwrap_or_default();
    let found = program.and_then(|program| HostProgram::on_path(program, &path));
    if let Some(found) = found.filter(|_| client.is_on_this_host()) {
        output::note(&found.for_recipe());
    }
}

/// What the form says of an input decides how its text is read, so that `-i cmd=5` stays a text.
fn typed(form: &Value, inputs: Map<String, Value>) -> Map<String, Value> {
    inputs
        .into_iter()
        .map(|(name, value)| {
            let property = form
                .pointer(&format!("/properties/{}", name.replace('~', "~0").replace('/', "~1")));
            let text = value.as_str().unwrap_or("").to_owned();
            let kind = property.and_then(|p| p.get("type")).and_then(Value::as_str);
            let is_path =
                property.and_then(|p| p.get("format")).and_then(Value::as_str) == Some("path");
            let value = match kind {
                Some("string") if is_path && tree_upload::named_by(&text).is_none() => {
                    Value::String(absolute(&text))
                }
                Some("string") => value,
                _ => serde_json::from_str(&text).unwrap_or(value),
            };
            (name, value)
        })
        .collect()
}

fn absolute(path: &str) -> String {
    let path = Path::new(path);
    let found = path.canonicalize().or_else(|_| std::path::absolute(path));
    found.unwrap_or_else(|_| path.to_path_buf()).to_string_lossy().into_owned()
}

async fn submit(
    client: &Client,
    args: &RunArgs,
    recipe: Option<Recipe>,
    inputs: Map<String, Value>,
) -> anyhow::Result<(RunHeader, Vec<TreeReceipt>)> {
    let is_known = recipe.is_none();
    let ServerRecipe { reference, hash, form } = meant(client, &args.recipe, recipe).await?;
    if is_known {
        check_names(&form, &inputs)?;
    }
    let options = TransferOptions { quiet: args.json, no_progress: args.no_progress };
    let (inputs, sent) = tree_transfer::sent(client, inputs, options).await?;
    let run_key = args.run_key.clone().unwrap_or_else(|| Ids::from_env().hex("cli:run-key", 16));
    let mut opts = json!({"runKey": run_key});
    if let (Some(fields), Some(timeout)) = (opts.as_object_mut(), args.timeout) {
        fields.insert("timeoutMS".into(), json!(timeout.ms()));
    }
    if let (Some(fields), true) = (opts.as_object_mut(), args.batch) {
        fields.insert("lane".into(), json!("batch"));
    }
    if let (Some(fields), Some(mode)) = (opts.as_object_mut(), &args.execution_mode) {
        fields.insert("executionMode".into(), json!(mode));
    }
    let mut body = json!({"recipeRef": reference, "formData": typed(&form, inputs), "opts": opts});
    if let (Some(fields), Some(hash)) = (body.as_object_mut(), hash) {
        fields.insert("recipeHash".into(), json!(hash));
    }
    let submitted = client.post("/api/run", &body);
    Ok((submission::told(submitted, args.json).await?, sent))
}

/// Directories that a run's inputs sent, in what a program reads of it.
fn add_sent(of_run: &mut Value, sent: &[TreeReceipt]) {
    if let (Some(fields), false) = (of_run.as_object_mut(), sent.is_empty()) {
        fields.insert("sent".into(), json!(sent));
    }
}

/// The recipe that an argument means, as the server has it.
pub(crate) struct ServerRecipe {
    pub reference: RecipeRef,
    /// Of a file: anybody of the tenant may import another text under its name meanwhile.
    pub hash: Option<String>,
    pub form: Value,
}

/// The recipe that an argument means: a file, which is imported, or an id.
pub(crate) async fn meant_by(client: &Client, named: &str) -> anyhow::Result<ServerRecipe> {
    meant(client, named, local_recipe(named)?).await
}

async fn meant(
    client: &Client,
    named: &str,
    recipe: Option<Recipe>,
) -> anyhow::Result<ServerRecipe> {
    let Some(mut recipe) = recipe else {
        let (reference, form) = recipe_lookup::known_recipe(client, named).await?;
        return Ok(ServerRecipe { reference, hash: None, form });
    };
    anchor(&mut recipe);
    let body = json!({"recipe": recipe, "origin": named});
    let imported: RecipeImportResponse = client.post("/api/recipes/import", &body).await?;
    let (reference, hash) = (imported.recipe_ref, Some(imported.hash));
    Ok(ServerRecipe { reference, hash, form: recipe.form_schema() })
}

/// A recipe's own relative paths mean the directory that the command was started in.
fn anchor(recipe: &mut Recipe) {
    if let Some(agent) = &mut recipe.plan.agent {
        let paths = std::iter::once(&mut agent.project).chain(&mut agent.program);
        for path in paths.filter(|path| !path.starts_with(['/', '$'])) {
            *path = absolute(path);
        }
    }
    for file in recipe.plan.tasks.iter_mut().flat_map(|t| &mut t.files) {
        if let Some(from) = &mut file.from
            && !from.starts_with(['/', '$'])
            && !from.starts_with("artifact://")
            && !from.starts_with("task://")
            && !from.starts_with("tree:")
        {
            *from = absolute(from);
        }
    }
}

/// Everything that the run left: for a program one object, for a person a summary. Its steps.
pub(crate) async fn report(
    client: &Client,
    header: &RunHeader,
    as_json: bool,
    sent: &[TreeReceipt],
) -> anyhow::Result<Vec<StepRow>> {
    let path = format!("/api/runs/{}", segment(header.run_id.as_str()));
    let artifacts: Vec<ArtifactRow> = client.get(&format!("{path}/artifacts")).await?;
    let wipes: Vec<WipeView> = client.get(&format!("{path}/wipes")).await?;
    let steps: Vec<StepRow> = client.get(&format!("{path}/steps")).await?;
    if as_json {
        let mut whole = serde_json::to_value(header)?;
        if let Some(fields) = whole.as_object_mut() {
            fields.insert("schemaVersion".into(), json!(1));
            fields.insert("artifacts".into(), json!(artifacts));
            fields.insert("wipe".into(), json!(wipes));
            fields.insert("steps".into(), json!(steps));
            let egress: Vec<EgressSnapshot> = client.get(&format!("{path}/egress")).await?;
            fields.insert("egress".into(), json!(egress));
            let reports = test_reports::of_run(client, header).await?;
            fields.insert("reports".into(), json!(reports));
        }
        add_sent(&mut whole, sent);
        output::json(&whole);
        return Ok(steps);
    }
    output::line(&format!("run {} {}", header.run_id, header.status.as_str()));
    if let Some(what) = &header.waits_for {
        output::line(&format!("waits for {what}"));
    }
    if let Some(error) = &header.error {
        output::line(&format!("error {error}"));
    }
    if header.held_sessions > 0 {
        output::line(&format!(
            "held: the wipe of {} sandboxes is not verified (cofferdam session ls --held)",
            header.held_sessions
        ));
    }
    let tasks: Vec<&TaskKey> = steps.iter().filter_map(|step| step.task_key.as_ref()).collect();
    let only = match tasks.as_slice() {
        [only] => Some(*only),
        _ => None,
    };
    let is_its =
        |row: &&ArtifactRow| row.kind == ArtifactKind::Stdout && Some(&row.task_key) == only;
    if let Some(log) = artifacts.iter().find(is_its) {
        let whole = match client.artifact(&log.uri).await {
            // It was erased, and the record goes on without it.
            Err(error) if error.is::<Negative>() => format!("{error}\n").into_bytes(),
            whole => whole?,
        };
        output::raw(&whole);
        // What follows stands on a line of its own.
        if header.status.is_retryable() && !whole.is_empty() && !whole.ends_with(b"\n") {
            output::line("");
        }
    }
    failure::last_words(client, header, &steps, &artifacts, only).await?;
    print_artifacts(header, &artifacts);
    artifact_notes::lines(&steps)?.iter().for_each(|line| output::line(line));
    summary_lines(header, &steps, &wipes).iter().for_each(|line| output::line(line));
    Ok(steps)
}

/// Totals and evidence, a line each.
fn summary_lines(header: &RunHeader, steps: &[StepRow], wipes: &[WipeView]) -> Vec<String> {
    [summary::totals(header, steps), summary::evidence(wipes)].into_iter().flatten().collect()
}

/// What the tasks left, without what Cofferdam itself keeps beside it: few by name, and how many there are.
fn print_artifacts(header: &RunHeader, artifacts: &[ArtifactRow]) {
    let row = |row: &ArtifactRow| {
        let digest: String = row.sha256.as_str().chars().take(12).collect();
        let step = shown_name(&row.step_id).to_owned();
        vec![step, row.name.clone(), row.size.to_string(), digest]
    };
    let mut rows: Vec<Vec<String>> = summary::own_artifacts(artifacts).map(row).collect();
    let more = rows.len().saturating_sub(MAX_ARTIFACTS);
    rows.truncate(MAX_ARTIFACTS);
    output::line("");
    if !rows.is_empty() {
        table::print(
            &[usual("STEP").least(10), key("ARTIFACT").least(12), key("BYTES"), extra("SHA256")],
            rows,
        );
    }
    if more > 0 {
        output::line(&format!("and {more} more: cofferdam artifacts ls {}", header.run_id));
    }
    if let Some(words) = summary::artifacts(artifacts) {
        output::line(&words);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_a_recipe_is_said_with_what_one_is() {
        for wrong in [".", "", "/"] {
            let error = local_recipe(wrong).unwrap_err();
            assert!(error.is::<Misuse>() && error.to_string().contains("recipe file"), "{error}");
        }
        assert!(local_recipe("nosuch").unwrap().is_none(), "an id");
    }

    #[test]
    fn inputs_are_read_as_the_form_says() {
        let form = json!({"properties": {"n": {"type": "integer"}, "cmd": {"type": "string"}, "dir": {"type": "string", "format": "path"}}});
        let inputs = parse_inputs(&[
            "n=4".into(),
            "cmd=5".into(),
            "dir=/tmp/../tmp".into(),
            "list=[1]".into(),
        ])
        .unwrap();
        let typed = typed(&form, inputs);
        assert_eq!(Value::Object(typed), json!({"n": 4, "cmd": "5", "dir": "/tmp", "list": [1]}));
    }

    #[test]
    fn an_input_that_the_form_does_not_declare_is_misuse_unless_it_takes_any() {
        let inputs = parse_inputs(&["cmd=5".into(), "shrads=2".into()]).unwrap();
        let form = json!({"type": "object", "properties": {"shards": {}, "cmd": {}}});
        let why = check_names(&form, &inputs).unwrap_err().0;
        assert!(why.starts_with("-i shrads: ") && why.contains("shards"), "{why}");
        let open = json!({"type": "object", "additionalProperties": true});
        assert!(check_names(&open, &inputs).is_ok());
    }

    #[test]
    fn an_input_without_a_name_or_given_twice_is_misuse() {
        assert!(parse_inputs(&["=x".into()]).is_err());
        assert!(parse_inputs(&["x".into()]).is_err());
        assert!(parse_inputs(&["x=1".into(), "x=2".into()]).is_err());
    }
}
