//! `doctor`: what this host can isolate, what is weak, and how to mend it.

use cofferdam_sandbox::{Host, HostConfig, HostFacts, Offer};
use serde_json::{Map, Value, json};

use super::args::{At, JsonArgs};
use super::exit::Exit;
use super::{output, state};

pub(crate) fn doctor(at: &At, args: &JsonArgs) -> anyhow::Result<Exit> {
    let dir = state::dir(at)?;
    let config = HostConfig { state_dir: dir, ..HostConfig::default() };
    let found = match Host::detect(config) {
        Ok(host) => facts(&host),
        Err(error) => json!({"schemaVersion": 1, "ready": false, "problem": error.to_string()}),
    };
    let ready = found.get("ready").and_then(Value::as_bool).unwrap_or(false);
    if args.json {
        output::json(&found);
    } else {
        print(&found);
    }
    Ok(if ready { Exit::Ok } else { Exit::No })
}

fn facts(host: &Host) -> Value {
    let facts = host.facts();
    json!({
        "schemaVersion": 1,
        "ready": true,
        "classes": classes(facts),
        "runtime": facts.runtime.path,
        "runtimeVersion": facts.runtime.version,
        "cgroups": format!("{:?}", facts.cgroups.mode),
        "kernel": facts.kernel,
        "cpus": facts.cpus,
        "memMB": facts.mem_mb,
        "weak": facts.weak(),
    })
}

/// Which classes this host has; no provider elsewhere is known to any.
fn classes(facts: &HostFacts) -> Value {
    let present = |offer: &Offer| matches!(offer, Offer::Present(_)).into();
    let mut said: Map<String, Value> = facts
        .classes
        .iter()
        .map(|fact| (fact.class.as_str().to_owned(), present(&fact.offer)))
        .collect();
    said.insert("remote".to_owned(), false.into());
    Value::Object(said)
}

fn print(found: &Value) {
    let text = |name: &str| match found.get(name) {
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
        None => String::new(),
    };
    if let Some(problem) = found.get("problem").and_then(Value::as_str) {
        output::line("this host cannot hold sandboxes yet");
        output::line(&format!("  {problem}"));
        return;
    }
    let classes = found.get("classes").and_then(Value::as_object);
    let present: Vec<&str> = classes
        .into_iter()
        .flatten()
        .filter_map(|(name, present)| (*present == true).then_some(name.as_str()))
        .collect();
    output::line(&format!("this host is ready: isolation classes {}", present.join(", ")));
    for (label, name) in [
        ("runtime", "runtime"),
        ("version", "runtimeVersion"),
        ("kernel", "kernel"),
        ("cgroups", "cgroups"),
        ("cpus", "cpus"),
        ("memory MiB", "memMB"),
    ] {
        output::line(&format!("  {label:<11} {}", text(name).lines().next().unwrap_or("")));
    }
    for weak in found.get("weak").and_then(Value::as_array).into_iter().flatten() {
        output::line(&format!("  weak        {}", weak.as_str().unwrap_or("")));
    }
}
