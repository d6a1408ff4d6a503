//! How each agent is started: a pure table of argv and environment.
//!
//! | type | argv | prompt |
//! |---|---|---|
//! | codex | `codex exec --json --skip-git-repo-check --dangerously-bypass-approvals-and-sandbox [tools] [--model M] -` | stdin |
//! | claude | `claude -p --output-format stream-json --verbose --permission-mode bypassPermissions [--model M] [tools]` | stdin |
//! | opencode | `opencode run --format json [--model M]`, tools by `OPENCODE_PERMISSION` | stdin |
//! | command | the given argv, or `/bin/sh PROMPT` | stdin |
//!
//! Cofferdam's sandbox is the boundary, so each agent's own sandbox and approvals are off: codex cannot make its
//! namespaces in ours, and without a terminal a question waits for ever. Tools are passed in the agent's own flags
//! ([`super::tools`] says which); limits are counted from its events, so no flag of the agent ends it.

use std::collections::BTreeMap;

use cofferdam_contracts::dispatch::{AgentType, SpawnRequest};
use cofferdam_contracts::sandbox::SandboxSpec;
use serde_json::{Map, Value};

use super::tools::{self, Tools};

/// Where the prompt lies in the sandbox.
pub(crate) const PROMPT: &str = "/dispatch/prompt.md";
/// An agent's home: its state is no part of the project and goes with the sandbox. Not below `/tmp`, where codex
/// refuses to keep its helpers.
pub(crate) const HOME: &str = "/home/agent";
/// Memory of an agent without a limit of its own, in MiB: opencode peaks at 570 before its first request, the
/// others below 210; the rest is for the commands that they run.
const MEM_MB: u64 = 1_024;
const MEM_MB_OPENCODE: u64 = 2_048;

/// The default memory limit of a type in MiB; `None`: that of any sandbox.
pub(crate) const fn mem_mb(agent: AgentType) -> Option<u64> {
    match agent {
        AgentType::Codex | AgentType::Claude => Some(MEM_MB),
        AgentType::Opencode => Some(MEM_MB_OPENCODE),
        AgentType::Command => None,
    }
}

/// The agent's argv.
pub(crate) fn argv(request: &SpawnRequest, spec: &SandboxSpec) -> Vec<String> {
    let tools = Tools::of(spec);
    let words = |list: &[&str]| list.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    let model = || request.model.iter().flat_map(|model| ["--model".to_owned(), model.clone()]);
    match request.agent_type {
        AgentType::Codex => {
            let mut line = words(&["codex", "exec", "--json", "--skip-git-repo-check"]);
            line.push("--dangerously-bypass-approvals-and-sandbox".to_owned());
            line.extend(codex(&tools));
            line.extend(model());
            line.push("-".to_owned());
            line
        }
        AgentType::Claude => {
            let mut line = words(&["claude", "-p", "--output-format", "stream-json", "--verbose"]);
            line.extend(words(&["--permission-mode", "bypassPermissions"]));
            line.extend(model());
            line.extend(claude(&tools));
            line
        }
        AgentType::Opencode => {
            let mut line = words(&["opencode", "run", "--format", "json"]);
            line.extend(model());
            line
        }
        AgentType::Command => match &request.cmd {
            Some(cmd) => cmd.clone(),
            None => words(&["/bin/sh", PROMPT]),
        },
    }
}

/// Variables of an agent beside those of any sandbox: no update, no telemetry, no question.
pub(crate) fn environment(agent: AgentType, spec: &SandboxSpec) -> BTreeMap<String, String> {
    let on: &[&str] = match agent {
        AgentType::Codex | AgentType::Command => &[],
        // It refuses to skip its questions as root unless this says that it is in a sandbox.
        AgentType::Claude => {
            &["IS_SANDBOX", "DISABLE_AUTOUPDATER", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC"]
        }
        AgentType::Opencode => &[
            "OPENCODE_DISABLE_AUTOUPDATE",
            "OPENCODE_DISABLE_LSP_DOWNLOAD",
            "OPENCODE_DISABLE_MODELS_FETCH",
            "OPENCODE_DISABLE_SHARE",
        ],
    };
    let mut env: BTreeMap<String, String> =
        on.iter().map(|name| ((*name).to_owned(), "1".to_owned())).collect();
    let home = if agent == AgentType::Command { "/tmp" } else { HOME };
    env.insert("HOME".to_owned(), home.to_owned());
    if agent == AgentType::Opencode {
        env.insert("OPENCODE_PERMISSION".to_owned(), opencode(&Tools::of(spec)).to_string());
    }
    env
}

fn codex(tools: &Tools<'_>) -> Vec<String> {
    let mut line = Vec::new();
    let mut say = |flag: &str, word: &str| line.extend([flag.to_owned(), word.to_owned()]);
    if !tools.has(tools::SHELL) {
        say("--disable", "shell_tool");
        say("--disable", "unified_exec");
    }
    if !tools.has("Task") {
        say("--disable", "multi_agent");
    }
    if !tools.has("WebSearch") {
        say("-c", "web_search=\"disabled\"");
    }
    line
}

fn claude(tools: &Tools<'_>) -> Vec<String> {
    let mut line = Vec::new();
    if let Some(allowed) = tools.allowed {
        // The set of built-in tools; tools of servers that a project's settings name stay out, too.
        line.extend(["--tools".to_owned(), allowed.join(","), "--strict-mcp-config".to_owned()]);
    }
    if !tools.denied.is_empty() {
        line.extend(["--disallowedTools".to_owned(), tools.denied.join(",")]);
    }
    line
}

/// What opencode calls the tools. Its one permission `edit` is for all that write.
const OPENCODE: [(&str, &str); 10] = [
    ("Bash", "bash"),
    ("Edit", "edit"),
    ("Glob", "glob"),
    ("Grep", "grep"),
    ("LS", "list"),
    ("Read", "read"),
    ("Task", "task"),
    ("TodoWrite", "todowrite"),
    ("WebFetch", "webfetch"),
    ("WebSearch", "websearch"),
];

fn opencode(tools: &Tools<'_>) -> Value {
    let mut rules = Map::new();
    let word = |allowed: bool| Value::from(if allowed { "allow" } else { "deny" });
    rules.insert("*".to_owned(), word(tools.allowed.is_none()));
    for (tool, name) in OPENCODE {
        if tools.is_restricted() {
            rules.insert(name.to_owned(), word(tools.has(tool)));
        }
    }
    // Where it may write is the kernel's matter; a question would wait for ever.
    rules.insert("external_directory".to_owned(), word(true));
    rules.insert("question".to_owned(), word(false));
    Value::Object(rules)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn request(value: Value) -> SpawnRequest {
        let mut whole = json!({"prompt": "p", "project_dir": "/p"});
        whole.as_object_mut().unwrap().extend(value.as_object().unwrap().clone());
        serde_json::from_value(whole).unwrap()
    }

    fn line(value: Value, spec: Value) -> String {
        argv(&request(value), &serde_json::from_value(spec).unwrap()).join(" ")
    }

    #[test]
    fn d_r1_r2_each_agent_gets_its_model_and_no_sandbox_of_its_own() {
        assert_eq!(
            line(json!({"model": "m1"}), json!({})),
            "codex exec --json --skip-git-repo-check --dangerously-bypass-approvals-and-sandbox --model m1 -"
        );
        assert_eq!(
            line(json!({"agent_type": "claude"}), json!({"max_turns": 3})),
            "claude -p --output-format stream-json --verbose --permission-mode bypassPermissions"
        );
        assert_eq!(
            line(json!({"agent_type": "opencode", "model": "p/m"}), json!({})),
            "opencode run --format json --model p/m"
        );
    }

    #[test]
    fn tools_are_told_to_each_agent_in_its_own_words() {
        let spec = json!({"tools_allowed": ["Read", "Bash"], "tools_denied": ["WebFetch"]});
        assert!(
            line(json!({"agent_type": "claude"}), spec.clone())
                .ends_with("--tools Read,Bash --strict-mcp-config --disallowedTools WebFetch")
        );
        assert!(line(json!({}), spec.clone()).contains(
            "--dangerously-bypass-approvals-and-sandbox --disable multi_agent -c web_search=\"disabled\" -"
        ));
        let env = environment(AgentType::Opencode, &serde_json::from_value(spec).unwrap());
        let rules: Value = serde_json::from_str(&env["OPENCODE_PERMISSION"]).unwrap();
        assert_eq!(
            (&rules["*"], &rules["bash"], &rules["edit"]),
            (&json!("deny"), &json!("allow"), &json!("deny"))
        );
        let denied = json!({"tools_denied": ["Bash"]});
        assert!(
            line(json!({}), denied.clone()).contains("--disable shell_tool --disable unified_exec")
        );
        let env = environment(AgentType::Opencode, &serde_json::from_value(denied).unwrap());
        let rules: Value = serde_json::from_str(&env["OPENCODE_PERMISSION"]).unwrap();
        assert_eq!((&rules["*"], &rules["bash"]), (&json!("allow"), &json!("deny")));
    }

    #[test]
    fn a_command_is_what_was_given_or_the_prompt_itself() {
        let given = json!({"agent_type": "command", "cmd": ["make", "x"]});
        assert_eq!(line(given, json!({})), "make x");
        let script = json!({"agent_type": "command"});
        assert_eq!(line(script, json!({})), format!("/bin/sh {PROMPT}"));
        assert_eq!(environment(AgentType::Command, &SandboxSpec::default())["HOME"], "/tmp");
    }
}
