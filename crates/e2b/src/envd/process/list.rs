//! `process.Process/List`: the commands of a sandbox that run.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::connect::fault::ReplyResult;
use crate::envd::call::Rpc;
use crate::envd::state::process::Process;

/// The commands that run.
pub(crate) async fn list(call: Rpc) -> ReplyResult {
    let processes = call.envd.processes();
    let running = processes.values().filter(|process| !process.is_over());
    Ok(json!({"processes": running.map(listed).collect::<Vec<Value>>()}))
}

fn listed(process: &Arc<Process>) -> Value {
    let mut value = json!({"pid": process.known.pid, "config": process.known.config});
    if let (Some(tag), Some(fields)) = (&process.known.tag, value.as_object_mut()) {
        fields.insert("tag".into(), tag.clone().into());
    }
    value
}
