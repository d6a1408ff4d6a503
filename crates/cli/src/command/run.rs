//! `run`: submit, follow, report.

use std::path::Path;

use anyhow::Context;
use cofferdam_ambient::random::Ids;
use cofferdam_contracts::recipe::Recipe;
use cofferdam_contracts::run::RunHeader;
use serde_json::{Map, Value, json};

use super::args::{At, RunArgs};
use super::client::{Client, segment};
use super::exit::{Exit, Misuse};
use super::follow::{Followed, Manner, follow};
use super::output;
use super::session::Session;

pub(crate) async fn run(at: &At, args: &RunArgs) -> anyhow::Result<Exit> {
    // What the command line alone can get wrong is said before anything starts.
    let recipe = local_recipe(&args.recipe)?;
    let inputs = parse_inputs(&args.inputs)?;
    let session =
        if args.detach { Session::reading(at).await? } else { Session::executing(at).await? };
    let outcome = submit_and_follow(&session, args, recipe, inputs).await;
    let closed = session.close().await;
    let exit = outcome?;
    closed?;
    Ok(exit)
}

async fn submit_and_follow(
    session: &Session,
    args: &RunArgs,
    recipe: Option<Recipe>,
    inputs: Map<String, Value>,
) -> anyhow::Result<Exit> {
    let client = &session.client;
    let header = submit(client, args, recipe, inputs).await?;
    if args.detach {
        let ids = json!({"schemaVersion": 1, "runId": header.run_id, "workflowID": header.workflow_id, "status": header.status});
        if args.json {
            output::json(&ids)
        } else {
            output::line(header.run_id.as_str())
        }
        session.note_if_idle().await;
        return Ok(Exit::Ok);
    }
    if !args.json {
        output::note(&format!("run {} of intent {}", header.run_id, header.intent_id));
    }
    let manner = Manner { yes: args.yes, quiet: args.json, for_output: false };
    let followed = follow(client, header.run_id.as_str(), manner).await?;
    match &followed {
        Followed::Ended { header, .. } => report(client, header, args.json).await?,
        Followed::Left if session.is_local() => {
            output::note("nothing executes it until `cofferdam up` runs");
        }
        Followed::Left => {}
    }
    Ok(followed.exit())
}

/// The recipe behind a file name; `None` where the argument is an id.
fn local_recipe(named: &str) -> anyhow::Result<Option<Recipe>> {
    let path = Path::new(named);
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

/// `name=value`: JSON where it parses as such, text otherwise.
fn parse_inputs(pairs: &[String]) -> anyhow::Result<Map<String, Value>> {
    let mut inputs = Map::new();
    for pair in pairs {
        let (name, value) = pair
            .split_once('=')
            .filter(|(name, _)| !name.is_empty())
            .ok_or_else(|| Misuse(format!("-i {pair:?} is not name=value")))?;
        let value = Value::String(value.to_owned());
        if inputs.insert(name.to_owned(), value).is_some() {
            return Err(Misuse(format!("-i {name} is given twice")).into());
        }
    }
    Ok(inputs)
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
                Some("string") if is_path => Value::String(absolute(&text)),
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
) -> anyhow::Result<RunHeader> {
    // A file runs by its text: anybody of the tenant may import another one under its name meanwhile.
    let (reference, hash, form) = match recipe {
        Some(mut recipe) => {
            anchor(&mut recipe);
            let body = json!({"recipe": recipe, "origin": args.recipe});
            let imported: Value = client.post("/api/recipes/import", &body).await?;
            let reference = imported.get("recipeRef").cloned().unwrap_or_default();
            (reference, imported.get("hash").cloned(), recipe.form_schema())
        }
        None => {
            let (reference, form) = known_recipe(client, &args.recipe).await?;
            (reference, None, form)
        }
    };
    let run_key = args.run_key.clone().unwrap_or_else(|| Ids::from_env().hex("cli:run-key", 16));
    let timeout_ms = args
        .timeout
        .as_deref()
        .map(|t| {
            cofferdam_contracts::timeout::parse(t).map_err(|e| Misuse(format!("--timeout: {e}")))
        })
        .transpose()?;
    let mut opts = json!({"runKey": run_key});
    if let (Some(fields), Some(ms)) = (opts.as_object_mut(), timeout_ms) {
        fields.insert("timeoutMS".into(), json!(ms));
    }
    if let (Some(fields), true) = (opts.as_object_mut(), args.batch) {
        fields.insert("lane".into(), json!("batch"));
    }
    let mut body = json!({"recipeRef": reference, "formData": typed(&form, inputs), "opts": opts});
    if let (Some(fields), Some(hash)) = (body.as_object_mut(), hash) {
        fields.insert("recipeHash".into(), hash);
    }
    client.post("/api/run", &body).await
}

/// A recipe's own relative paths mean the directory that the command was started in.
fn anchor(recipe: &mut Recipe) {
    for file in recipe.plan.tasks.iter_mut().flat_map(|t| &mut t.files) {
        if let Some(from) = &mut file.from
            && !from.starts_with(['/', '$'])
            && !from.starts_with("artifact://")
        {
            *from = absolute(from);
        }
    }
}

async fn known_recipe(client: &Client, named: &str) -> anyhow::Result<(Value, Value)> {
    let (id, v) = match named.split_once('@') {
        Some((id, v)) => (id.to_owned(), v.to_owned()),
        None => {
            let versions: Vec<Value> =
                client.get(&format!("/api/recipes/{}/versions", segment(named))).await?;
            let newest = versions.first().and_then(|v| v.get("v")).and_then(Value::as_str);
            (named.to_owned(), newest.unwrap_or_default().to_owned())
        }
    };
    let reference = json!({"id": id, "v": v});
    let recipe: Recipe = client.post("/api/recipes/export", &reference).await?;
    Ok((reference, recipe.form_schema()))
}

/// Everything that the run left: for a program one object, for a person a summary.
pub(crate) async fn report(
    client: &Client,
    header: &RunHeader,
    as_json: bool,
) -> anyhow::Result<()> {
    let path = format!("/api/runs/{}", segment(header.run_id.as_str()));
    let artifacts: Vec<Value> = client.get(&format!("{path}/artifacts")).await?;
    let wipes: Vec<Value> = client.get(&format!("{path}/wipes")).await?;
    let steps: Vec<Value> = client.get(&format!("{path}/steps")).await?;
    if as_json {
        let mut whole = serde_json::to_value(header)?;
        if let Some(fields) = whole.as_object_mut() {
            fields.insert("schemaVersion".into(), json!(1));
            fields.insert("artifacts".into(), json!(artifacts));
            fields.insert("wipe".into(), json!(wipes));
            fields.insert("steps".into(), json!(steps));
            let egress: Vec<Value> = client.get(&format!("{path}/egress")).await?;
            fields.insert("egress".into(), json!(egress));
        }
        output::json(&whole);
        return Ok(());
    }
    output::line(&format!("run {} {}", header.run_id, header.status.as_str()));
    if let Some(error) = &header.error {
        output::line(&format!("error {error}"));
    }
    if header.held_sessions > 0 {
        output::line(&format!(
            "held: {} of its sandboxes are not provably gone (cofferdam session ls --held)",
            header.held_sessions
        ));
    }
    if let [only] = tasks(&steps).as_slice() {
        print_stdout(client, &artifacts, only).await?;
    }
    let text =
        |row: &Value, name: &str| row.get(name).and_then(Value::as_str).unwrap_or("").to_owned();
    let rows: Vec<Vec<String>> = artifacts
        .iter()
        .filter(|a| !matches!(text(a, "kind").as_str(), "artifact_index" | "raw" | "timings"))
        .map(|a| {
            let size = a.get("size").and_then(Value::as_i64).unwrap_or(0);
            let digest: String = text(a, "sha256").chars().take(12).collect();
            vec![text(a, "stepId"), text(a, "name"), size.to_string(), digest]
        })
        .collect();
    if !rows.is_empty() {
        output::line("");
        output::table(&["STEP", "ARTIFACT", "BYTES", "SHA256"], &rows);
    }
    let rows: Vec<Vec<String>> = wipes
        .iter()
        .map(|w| {
            let checks =
                w.pointer("/evidence/checks").and_then(Value::as_array).map_or(0, Vec::len);
            let settled = w.get("settlement").is_some_and(|s| !s.is_null());
            vec![
                text(w, "sandboxId"),
                text(w, "state"),
                if settled { "settled".to_owned() } else { text(w, "status") },
                text(w, "method"),
                checks.to_string(),
            ]
        })
        .collect();
    if !rows.is_empty() {
        output::line("");
        output::table(&["SANDBOX", "STATE", "WIPE", "METHOD", "CHECKS"], &rows);
    }
    Ok(())
}

fn tasks(steps: &[Value]) -> Vec<String> {
    steps
        .iter()
        .filter_map(|s| s.get("taskKey"))
        .filter_map(Value::as_str)
        .map(str::to_owned)
        .collect()
}

async fn print_stdout(client: &Client, artifacts: &[Value], task: &str) -> anyhow::Result<()> {
    let is =
        |a: &Value, name: &str, value: &str| a.get(name).and_then(Value::as_str) == Some(value);
    let log = artifacts.iter().find(|a| is(a, "kind", "stdout") && is(a, "taskKey", task));
    if let Some(uri) = log.and_then(|l| l.get("uri")).and_then(Value::as_str) {
        let bytes = client
            .bytes(&format!("/api/artifacts/{}", uri.trim_start_matches("artifact://")))
            .await?;
        output::raw(&bytes);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn an_input_without_a_name_or_given_twice_is_misuse() {
        assert!(parse_inputs(&["=x".into()]).is_err());
        assert!(parse_inputs(&["x".into()]).is_err());
        assert!(parse_inputs(&["x=1".into(), "x=2".into()]).is_err());
    }
}
