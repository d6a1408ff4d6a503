//! Commands that a pause with memory did not end: they are followed again, as they were known before.

use std::sync::Arc;

use cofferdam_live::inside::{Command, MAX_NOTE};
use cofferdam_live::{FollowCommand, ListCommands};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::envd::state::Envd;
use crate::envd::state::processes::NewProcess;

/// What a client said of a command, kept beside it in its sandbox. Its sandbox may have changed it: it is that sandbox's
/// own list.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Note {
    config: Value,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tag: Option<String>,
}

/// The note of a command; of one with a very long line its name alone. Pure.
pub(crate) fn note(config: &Value, tag: Option<&str>) -> String {
    let of = |config: Value| {
        let note = Note { config, tag: tag.map(str::to_owned) };
        serde_json::to_string(&note).unwrap_or_default()
    };
    let whole = of(config.clone());
    if whole.len() <= MAX_NOTE {
        return whole;
    }
    let name = config.get("cmd").and_then(Value::as_str).unwrap_or("");
    let name: String = name.chars().take(MAX_NAME).collect();
    of(json!({"cmd": name, "args": [], "envs": {}}))
}

/// Characters of a name: as many as the file system has for one.
const MAX_NAME: usize = 255;

/// Enters those of a sandbox in its list, before anybody asks for one.
pub(crate) async fn adopt(envd: &Arc<Envd>) {
    if envd.guest.facts.went_on {
        envd.adopted.get_or_init(|| enter_all(envd)).await;
    }
}

/// What cannot be followed is not there: it ends with its sandbox.
async fn enter_all(envd: &Arc<Envd>) {
    let commands = match envd.guest.ask(ListCommands).await {
        Ok(commands) => commands,
        Err(error) => {
            tracing::warn!(sandbox = %envd.guest.facts.id, %error, "commands that went on are not known");
            return;
        }
    };
    for command in commands {
        let pid = command.pid;
        if let Err(why) = enter(envd, command).await {
            tracing::debug!(sandbox = %envd.guest.facts.id, pid, why, "a command is not followed");
        }
    }
}

async fn enter(envd: &Arc<Envd>, command: Command) -> Result<(), String> {
    // Without a note it was started by another door.
    let note: Note = serde_json::from_str(&command.note).map_err(|error| error.to_string())?;
    let (pid, is_pty) = (command.pid, command.terminal);
    let running = envd.guest.ask(FollowCommand(command)).await;
    let running = running.map_err(|error| error.to_string())?;
    let new = NewProcess { pid, running, config: note.config, tag: note.tag, is_pty };
    drop(envd.enter(new));
    Ok(())
}

#[cfg(test)]
mod tests {

    use super::*;

    #[test]
    fn a_note_says_what_a_client_said_and_never_more_than_is_kept() {
        let config = json!({"cmd": "sleep", "args": ["9"], "envs": {"A": "b"}});
        let kept: Note = serde_json::from_str(&note(&config, Some("job"))).unwrap();
        assert_eq!((kept.config, kept.tag.as_deref()), (config, Some("job")));
        let long = json!({"cmd": "\u{1}".repeat(MAX_NOTE), "args": ["x".repeat(MAX_NOTE)]});
        let short = note(&long, None);
        assert!(short.len() <= MAX_NOTE, "{}", short.len());
        let kept: Note = serde_json::from_str(&short).unwrap();
        assert_eq!(kept.config["args"], json!([]));
    }
}
