//! How each agent is started: a pure table of argv and environment.
//!
//! | type | argv | prompt |
//! |---|---|---|
//! | codex | `codex exec --json --skip-git-repo-check --dangerously-bypass-approvals-and-sandbox [no telemetry] [provider] [tools] [--model M] -` | stdin |
//! | claude | `claude -p --output-format stream-json --verbose --permission-mode bypassPermissions [--model M] [tools]` | stdin |
//! | opencode | `opencode run --format json [--model M]`, tools by `OPENCODE_PERMISSION`, provider by `OPENCODE_CONFIG_CONTENT` | stdin |
//! | command | the given argv, or `/bin/sh PROMPT` | stdin |
//!
//! Cofferdam's sandbox is the boundary, so each agent's own sandbox and approvals are off: codex cannot make its
//! namespaces in ours, and without a terminal a question waits for ever. Tools are passed in the agent's own flags
//! ([`super::tools`] says which); limits are counted from its events, so no flag of the agent ends it.

use std::collections::BTreeMap;

use cofferdam_contracts::dispatch::{AgentType, SpawnRequest};
use cofferdam_contracts::model::ModelProtocol;
use cofferdam_contracts::sandbox::SandboxSpec;
use cofferdam_sandbox::model_base_url;
use serde_json::{Map, Value, json};

use super::model::{AgentModel, PROVIDER};
use super::tools::{self, Tools};

/// Where the prompt lies in the sandbox.
pub(crate) const PROMPT: &str = "/dispatch/prompt.md";
/// An agent's home: its state is no part of the project and goes with the sandbox. Not below `/tmp`, where codex
/// refuses to keep its helpers.
pub(crate) const HOME: &str = "/home/agent";
/// A catalog of codex without the model that is used: of one that it does not know, it takes for granted that it has no
/// tool that patches files. It may not be empty.
pub(crate) const CATALOG: &str = "/dispatch/models.json";
/// Memory of an agent without a limit of its own, in MiB: opencode peaks at 570 before its first request, the
/// others below 210; the rest is for the commands that they run.
const MEM_MB: u64 = 1_024;
const MEM_MB_OPENCODE: u64 = 2_048;

/// Where an agent's program is looked for first.
pub(crate) fn program(agent: AgentType) -> String {
    format!("/opt/agents/bin/{}", agent.as_str())
}

/// The default memory limit of a type in MiB; `None`: that of any sandbox.
pub(crate) const fn mem_mb(agent: AgentType) -> Option<u64> {
    match agent {
        AgentType::Codex | AgentType::Claude => Some(MEM_MB),
        AgentType::Opencode => Some(MEM_MB_OPENCODE),
        AgentType::Command => None,
    }
}

/// The text of [`CATALOG`], where an agent needs one.
pub(crate) fn catalog(agent: AgentType, spec: &SandboxSpec) -> Option<String> {
    let is_needed = agent == AgentType::Codex && !Tools::of(spec).has("Edit");
    let none = json!({"slug": "none", "display_name": "none", "description": "", "priority": 1,
        "default_reasoning_level": "medium", "supported_reasoning_levels": [], "shell_type": "unified_exec",
        "visibility": "hide", "supported_in_api": true, "base_instructions": "", "context_window": 272_000,
        "truncation_policy": {"mode": "tokens", "limit": 10_000}, "experimental_supported_tools": [],
        "support_verbosity": false, "supports_parallel_tool_calls": false,
        "supports_reasoning_summaries": false});
    is_needed.then(|| json!({"models": [none]}).to_string())
}

/// The agent's argv. `model` is the one that it is started with, where it calls by the endpoint.
pub(crate) fn argv(
    request: &SpawnRequest,
    spec: &SandboxSpec,
    model: Option<&AgentModel>,
) -> Vec<String> {
    let tools = Tools::of(spec);
    let words = |list: &[&str]| list.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    let named = match (model, request.agent_type) {
        (Some(model), AgentType::Opencode) => Some(format!("{PROVIDER}/{}", model.name)),
        (Some(model), _) => Some(model.name.to_string()),
        (None, _) => request.model.clone(),
    };
    let named = || named.iter().flat_map(|name| ["--model".to_owned(), name.clone()]);
    match request.agent_type {
        AgentType::Codex => {
            let mut line = words(&["codex", "exec", "--json", "--skip-git-repo-check"]);
            line.push("--dangerously-bypass-approvals-and-sandbox".to_owned());
            // At its start it would ask for names of its maker, and fetch a list of plugins.
            line.extend(words(&["-c", "analytics.enabled=false", "--disable", "plugins"]));
            line.extend(model.map(|_| codex_provider()).into_iter().flatten());
            line.extend(codex(&tools));
            line.extend(named());
            line.push("-".to_owned());
            line
        }
        AgentType::Claude => {
            let mut line = words(&["claude", "-p", "--output-format", "stream-json", "--verbose"]);
            line.extend(words(&["--permission-mode", "bypassPermissions"]));
            line.extend(named());
            line.extend(claude(&tools));
            line
        }
        AgentType::Opencode => {
            let mut line = words(&["opencode", "run", "--format", "json"]);
            line.extend(named());
            line
        }
        AgentType::Command => match &request.cmd {
            Some(cmd) => cmd.clone(),
            None => words(&["/bin/sh", PROMPT]),
        },
    }
}

/// Variables of an agent beside those of any sandbox: no update, no telemetry, no question.
pub(crate) fn environment(
    agent: AgentType,
    spec: &SandboxSpec,
    model: Option<&AgentModel>,
) -> BTreeMap<String, String> {
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
    match (agent, model) {
        (AgentType::Opencode, Some(model)) => {
            env.insert("OPENCODE_CONFIG_CONTENT".to_owned(), opencode_config(model).to_string());
        }
        // Its titles, summaries and subagents have models of their own, which no provider may offer.
        (AgentType::Claude, Some(model)) => {
            let names = [
                "ANTHROPIC_DEFAULT_HAIKU_MODEL",
                "ANTHROPIC_SMALL_FAST_MODEL",
                "CLAUDE_CODE_SUBAGENT_MODEL",
            ];
            env.extend(names.map(|name| (name.to_owned(), model.name.to_string())));
        }
        _ => {}
    }
    env
}

/// The endpoint as a provider of codex: its own would be asked by a websocket, by its names in the internet.
fn codex_provider() -> Vec<String> {
    let fields = [
        ("name", "Cofferdam".to_owned()),
        ("base_url", model_base_url()),
        ("wire_api", "responses".to_owned()),
        ("env_key", "OPENAI_API_KEY".to_owned()),
    ];
    let fields = fields.map(|(key, value)| format!("model_providers.{PROVIDER}.{key}=\"{value}\""));
    let all = std::iter::once(format!("model_provider=\"{PROVIDER}\"")).chain(fields);
    all.flat_map(|pair| ["-c".to_owned(), pair]).collect()
}

/// The endpoint as a provider of opencode.
fn opencode_config(model: &AgentModel) -> Value {
    let library = match model.protocol {
        ModelProtocol::OpenaiChat => "@ai-sdk/openai-compatible",
        ModelProtocol::OpenaiResponses => "@ai-sdk/openai",
        ModelProtocol::AnthropicMessages => "@ai-sdk/anthropic",
    };
    let name = model.name.as_str();
    let full = format!("{PROVIDER}/{name}");
    // The endpoint takes any key, and adds the provider's outside.
    let options = json!({"baseURL": model_base_url(), "apiKey": "cofferdam-placeholder"});
    let provider = json!({"npm": library, "name": "Cofferdam", "options": options,
        "models": Map::from_iter([(name.to_owned(), json!({"name": name}))])});
    json!({"model": full, "small_model": full, "enabled_providers": [PROVIDER],
        "provider": Map::from_iter([(PROVIDER.to_owned(), provider)])})
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
    if !tools.has("Edit") {
        say("-c", &format!("model_catalog_json=\"{CATALOG}\""));
    }
    if tools.allowed.is_some() {
        // What no policy has a name for.
        for feature in ["goals", "tool_suggest", "apps", "image_generation"] {
            say("--disable", feature);
        }
    }
    line
}

fn claude(tools: &Tools<'_>) -> Vec<String> {
    let mut line = Vec::new();
    if let Some(allowed) = tools.allowed {
        // The set of built-in tools; tools of servers that a project's settings name stay out, too.
        let names = tools::todays(allowed).join(",");
        line.extend(["--tools".to_owned(), names, "--strict-mcp-config".to_owned()]);
    }
    if !tools.denied.is_empty() {
        line.extend(["--disallowedTools".to_owned(), tools::todays(tools.denied).join(",")]);
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
        argv(&request(value), &serde_json::from_value(spec).unwrap(), None).join(" ")
    }

    #[test]
    fn d_r1_r2_each_agent_gets_its_model_and_no_sandbox_of_its_own() {
        assert_eq!(
            line(json!({"model": "m1"}), json!({})),
            "codex exec --json --skip-git-repo-check --dangerously-bypass-approvals-and-sandbox -c analytics.enabled=false --disable plugins --model m1 -"
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
            "--disable multi_agent -c web_search=\"disabled\" -c model_catalog_json=\"/dispatch/models.json\" --disable goals"
        ));
        let env = environment(AgentType::Opencode, &serde_json::from_value(spec).unwrap(), None);
        let rules: Value = serde_json::from_str(&env["OPENCODE_PERMISSION"]).unwrap();
        assert_eq!(
            (&rules["*"], &rules["bash"], &rules["edit"]),
            (&json!("deny"), &json!("allow"), &json!("deny"))
        );
        let denied = json!({"tools_denied": ["Bash"]});
        assert!(
            line(json!({}), denied.clone()).contains("--disable shell_tool --disable unified_exec")
        );
        let env = environment(AgentType::Opencode, &serde_json::from_value(denied).unwrap(), None);
        let rules: Value = serde_json::from_str(&env["OPENCODE_PERMISSION"]).unwrap();
        assert_eq!((&rules["*"], &rules["bash"]), (&json!("allow"), &json!("deny")));
    }

    #[test]
    fn agents_b1_each_agent_is_led_to_the_endpoint_by_its_own_flags() {
        let model = AgentModel {
            name: cofferdam_contracts::id::ModelName::parse("big").unwrap(),
            protocol: ModelProtocol::AnthropicMessages,
        };
        let none = SandboxSpec::default();
        let line = |agent: &str| argv(&request(json!({"agent_type": agent})), &none, Some(&model));
        let codex = line("codex").join(" ");
        assert!(
            codex.contains("-c model_provider=\"cofferdam\"") && codex.ends_with("--model big -")
        );
        assert!(codex.contains("model_providers.cofferdam.base_url=\"http://127.0.0.53:3129/v1\""));
        assert!(line("claude").join(" ").ends_with("--model big"));
        assert!(line("opencode").join(" ").ends_with("--model cofferdam/big"));
        let env = environment(AgentType::Opencode, &none, Some(&model));
        let config: Value = serde_json::from_str(&env["OPENCODE_CONFIG_CONTENT"]).unwrap();
        assert_eq!(config["provider"]["cofferdam"]["npm"], "@ai-sdk/anthropic");
        let env = environment(AgentType::Claude, &none, Some(&model));
        assert_eq!(env["ANTHROPIC_DEFAULT_HAIKU_MODEL"], "big");
    }

    #[test]
    fn a_command_is_what_was_given_or_the_prompt_itself() {
        let given = json!({"agent_type": "command", "cmd": ["make", "x"]});
        assert_eq!(line(given, json!({})), "make x");
        let script = json!({"agent_type": "command"});
        assert_eq!(line(script, json!({})), format!("/bin/sh {PROMPT}"));
        assert_eq!(environment(AgentType::Command, &SandboxSpec::default(), None)["HOME"], "/tmp");
    }
}
