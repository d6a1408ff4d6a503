//! How each agent is started: a pure table.
//!
//! | type | argv | prompt |
//! |---|---|---|
//! | codex | `codex exec --json --skip-git-repo-check --sandbox MODE [--model M] -` | stdin |
//! | claude | `claude -p --output-format stream-json --verbose [--model M] [--max-turns N] [tools]` | stdin |
//! | opencode | `opencode run --format json [--model M]` | stdin |
//! | command | what was given, or `/bin/sh PROMPT` | stdin |
//!
//! Tools go to agents that have flags for them besides, so that they do not try in vain; what holds is
//! the kernel's word.

use cofferdam_contracts::dispatch::{AgentType, SpawnRequest};
use cofferdam_contracts::sandbox::{AccessMode, SandboxSpec};

use super::tools::is_own;

/// Where the prompt lies in the sandbox.
pub(crate) const PROMPT: &str = "/dispatch/prompt.md";

/// The agent's argv.
pub(crate) fn argv(request: &SpawnRequest, spec: &SandboxSpec, mode: AccessMode) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    let mut say = |list: &[&str]| words.extend(list.iter().map(|word| (*word).to_owned()));
    match request.agent_type {
        AgentType::Codex => {
            say(&["codex", "exec", "--json", "--skip-git-repo-check", "--sandbox", codex(mode)]);
            if let Some(model) = &request.model {
                say(&["--model", model]);
            }
            say(&["-"]);
        }
        AgentType::Claude => {
            say(&["claude", "-p", "--output-format", "stream-json", "--verbose"]);
            if let Some(model) = &request.model {
                say(&["--model", model]);
            }
            if let Some(turns) = spec.max_turns {
                say(&["--max-turns", &turns.to_string()]);
            }
            if let Some(tools) = &spec.tools_allowed {
                say(&["--allowedTools", &claude(tools, mode)]);
            }
            if let Some(tools) = &spec.tools_denied {
                let denied: Vec<String> = tools.iter().map(|tool| told(tool)).collect();
                say(&["--disallowedTools", &denied.join(",")]);
            }
        }
        AgentType::Opencode => {
            say(&["opencode", "run", "--format", "json"]);
            if let Some(model) = &request.model {
                say(&["--model", model]);
            }
        }
        AgentType::Command => match &request.cmd {
            Some(cmd) => return cmd.clone(),
            None => say(&["/bin/sh", PROMPT]),
        },
    }
    words
}

const fn codex(mode: AccessMode) -> &'static str {
    match mode {
        AccessMode::ReadOnly => "read-only",
        AccessMode::WorkspaceWrite => "workspace-write",
        AccessMode::Full => "danger-full-access",
    }
}

/// Its own tools as the mode allows, and the shell for each program.
fn claude(tools: &[String], mode: AccessMode) -> String {
    let mut names: Vec<String> = Vec::new();
    // Whoever names some of its own tools means these and no others.
    if !tools.iter().any(|tool| is_own(tool)) {
        names.extend(["Read", "Glob", "Grep"].map(str::to_owned));
        if mode != AccessMode::ReadOnly {
            names.extend(["Edit", "Write"].map(str::to_owned));
        }
    }
    names.extend(tools.iter().map(|tool| told(tool)));
    names.join(",")
}

/// A tool of its own by its name, a program as what its shell may run.
fn told(tool: &str) -> String {
    if is_own(tool) { tool.to_owned() } else { bash(tool) }
}

fn bash(tool: &str) -> String {
    let name = tool.rsplit('/').next().unwrap_or(tool);
    format!("Bash({name}:*)")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn request(value: serde_json::Value) -> SpawnRequest {
        let mut whole = json!({"prompt": "p", "project_dir": "/p"});
        whole.as_object_mut().unwrap().extend(value.as_object().unwrap().clone());
        serde_json::from_value(whole).unwrap()
    }

    fn line(value: serde_json::Value, spec: serde_json::Value, mode: AccessMode) -> String {
        let spec = serde_json::from_value(spec).unwrap();
        argv(&request(value), &spec, mode).join(" ")
    }

    #[test]
    fn each_agent_gets_model_and_mode_in_its_own_words() {
        assert_eq!(
            line(json!({"model": "m1"}), json!({}), AccessMode::ReadOnly),
            "codex exec --json --skip-git-repo-check --sandbox read-only --model m1 -"
        );
        assert_eq!(
            line(
                json!({"agent_type": "claude"}),
                json!({"max_turns": 3, "tools_allowed": ["/usr/bin/git"], "tools_denied": ["curl"]}),
                AccessMode::WorkspaceWrite
            ),
            "claude -p --output-format stream-json --verbose --max-turns 3 --allowedTools \
             Read,Glob,Grep,Edit,Write,Bash(git:*) --disallowedTools Bash(curl:*)"
        );
        assert_eq!(
            line(json!({"agent_type": "opencode", "model": "p/m"}), json!({}), AccessMode::Full),
            "opencode run --format json --model p/m"
        );
    }

    #[test]
    fn a_command_is_what_was_given_or_the_prompt_itself() {
        let given = json!({"agent_type": "command", "cmd": ["make", "x"]});
        assert_eq!(line(given, json!({}), AccessMode::Full), "make x");
        let script = json!({"agent_type": "command"});
        assert_eq!(line(script, json!({}), AccessMode::Full), format!("/bin/sh {PROMPT}"));
    }
}
