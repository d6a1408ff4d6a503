//! `exec`: one command in one sandbox, now, with its own output and exit status.

use anyhow::Context;
use cofferdam_contracts::run::{RunHeader, RunStatus};
use serde_json::{Value, json};

use super::args::{At, ExecArgs};
use super::client::{Client, segment};
use super::exit::{Exit, Misuse};
use super::follow::{Manner, follow};
use super::session::Session;
use super::{output, run};

pub(crate) async fn exec(at: &At, args: &ExecArgs) -> anyhow::Result<Exit> {
    let recipe = recipe(args)?;
    let session = Session::executing(at).await?;
    let outcome = once(&session.client, args, &recipe).await;
    let closed = session.close().await;
    let exit = outcome?;
    closed?;
    Ok(exit)
}

/// The command as a recipe, so that it leaves the same records as every other work.
fn recipe(args: &ExecArgs) -> anyhow::Result<Value> {
    let escape = |text: &String| text.replace("${", "$${");
    let egress = match args.egress.as_str() {
        "none" => json!("none"),
        names => json!(names.split(',').collect::<Vec<_>>()),
    };
    let mut task = json!({
        "name": "exec",
        "image": args.image,
        "exec": {"run": args.cmd.iter().map(escape).collect::<Vec<_>>(), "timeout": format!("{}s", args.timeout), "egress": egress},
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
    if let Some(class) = &args.isolation {
        set("", "isolation", json!({"class_min": class}));
    }
    if let Some(dir) = &args.work {
        let dir =
            dir.canonicalize().map_err(|e| Misuse(format!("--work {}: {e}", dir.display())))?;
        let file = json!({"from": dir, "to": "/work", "access": "workspace-write"});
        set("", "files", json!([file]));
    }
    Ok(
        json!({"id": "exec", "v": "1", "caps": {"sandbox_minutes": 1500}, "plan": {"tasks": [task]}}),
    )
}

async fn once(client: &Client, args: &ExecArgs, recipe: &Value) -> anyhow::Result<Exit> {
    let imported: Value = client
        .post("/api/recipes/import", &json!({"recipe": recipe, "origin": "command line"}))
        .await?;
    let key = cofferdam_ambient::random::secret_hex(16);
    // By its text: anybody of the tenant may import another one under this name meanwhile.
    let body = json!({
        "recipeRef": imported.get("recipeRef"), "recipeHash": imported.get("hash"),
        "formData": {}, "opts": {"runKey": key},
    });
    let header: RunHeader = client.post("/api/run", &body).await?;
    let header = follow(client, header.run_id.as_str(), Manner { yes: false, quiet: true }).await?;
    if args.json {
        run::report(client, &header, true).await?;
        return Ok(if header.status == RunStatus::Succeeded { Exit::Ok } else { Exit::No });
    }
    relay(client, &header).await
}

/// The command's own output and status; what the sandbox has to say besides goes to stderr.
async fn relay(client: &Client, header: &RunHeader) -> anyhow::Result<Exit> {
    let path = format!("/api/runs/{}", segment(header.run_id.as_str()));
    let artifacts: Vec<Value> = client.get(&format!("{path}/artifacts")).await?;
    for (kind, to_stdout) in [("stdout", true), ("stderr", false)] {
        let log = artifacts.iter().find(|a| a.get("kind").and_then(Value::as_str) == Some(kind));
        if let Some(uri) = log.and_then(|l| l.get("uri")).and_then(Value::as_str) {
            let bytes = client
                .bytes(&format!("/api/artifacts/{}", uri.trim_start_matches("artifact://")))
                .await?;
            if to_stdout {
                output::raw(&bytes);
            } else {
                output::raw_err(&bytes);
            }
        }
    }
    let steps: Vec<Value> = client.get(&format!("{path}/steps")).await?;
    let task = steps
        .iter()
        .rfind(|s| s.get("taskKey").is_some_and(Value::is_string))
        .context("no task ran")?;
    let code = task.pointer("/output/errCode").and_then(Value::as_str).unwrap_or("");
    let exit = task.pointer("/output/exit").and_then(Value::as_i64).unwrap_or(-1);
    if !matches!(code, "NONE" | "CMD_NONZERO") {
        let why = task.get("error").and_then(Value::as_str).unwrap_or("");
        output::note(&format!("{code}: {why}"));
    }
    Ok(match u8::try_from(exit) {
        Ok(0) if header.status == RunStatus::Succeeded => Exit::Ok,
        Ok(code) if code > 0 => Exit::Of(code),
        _ => Exit::No,
    })
}
