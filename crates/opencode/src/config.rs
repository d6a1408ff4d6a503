//! The daemon's configuration and environment: offline, no network but the model proxy, no child sessions.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::request::Model;

/// What a run decides about its daemon.
#[derive(Debug, Clone)]
pub struct Settings<'a> {
    /// Base URL of the model proxy, as an OpenAI-compatible client takes it.
    pub base_url: &'a str,
    /// The placeholder that stands where a key would: the proxy adds the real one.
    pub api_key: &'a str,
    /// The only model.
    pub model: &'a Model,
    /// State directory of this run's daemon; database, snapshots and caches are below it.
    pub state: &'a str,
    /// Name for basic authentication.
    pub username: &'a str,
    /// Password for basic authentication: fresh for each daemon.
    pub password: &'a str,
}

/// The configuration, as JSON.
#[must_use]
pub fn configuration(settings: &Settings<'_>) -> Value {
    let off = json!({"disable": true});
    let model = &settings.model.model;
    let provider = json!({
        "npm": "@ai-sdk/openai-compatible",
        "options": {"baseURL": settings.base_url, "apiKey": settings.api_key,
            "timeout": false, "headerTimeout": false, "chunkTimeout": false},
        "models": {model: {"name": model}},
    });
    json!({
        "autoupdate": false, "share": "disabled", "lsp": false, "formatter": false, "plugin": [],
        "compaction": {"auto": false},
        "enabled_providers": [settings.model.provider],
        "model": format!("{}/{model}", settings.model.provider),
        "provider": {&settings.model.provider: provider},
        // Without `StructuredOutput` a denied `*` loops for ever.
        "permission": {"*": "deny", "StructuredOutput": "allow", "read": "allow", "glob": "allow", "grep": "allow",
            "edit": "allow", "bash": "allow", "task": "deny", "question": "deny", "external_directory": "deny",
            "doom_loop": "deny"},
        "agent": {"plan": {"permission": {"edit": "deny", "bash": "deny"}},
            "general": off, "explore": off, "title": off, "summary": off},
    })
}

/// The shell of the daemon's tools: they inherit its environment, and what speaks to the daemon is nothing of theirs.
pub const TOOL_SHELL: &str = "#!/bin/sh
unset OPENCODE_SERVER_PASSWORD OPENCODE_SERVER_USERNAME OPENCODE_CONFIG_CONTENT
[ -x /bin/bash ] && SHELL=/bin/bash || SHELL=/bin/sh
export SHELL
exec \"$SHELL\" \"$@\"
";

/// Where [`TOOL_SHELL`] has to be before the daemon starts.
#[must_use]
pub fn tool_shell(state: &str) -> String {
    format!("{state}/shell")
}

/// The environment of the daemon's process, beside `PATH`.
#[must_use]
pub fn environment(settings: &Settings<'_>) -> BTreeMap<String, String> {
    const OFF: [&str; 8] = [
        "MODELS_FETCH",
        "AUTOUPDATE",
        "LSP_DOWNLOAD",
        "DEFAULT_PLUGINS",
        "PROJECT_CONFIG",
        "SHARE",
        "CLAUDE_CODE",
        "EXTERNAL_SKILLS",
    ];
    let mut env: BTreeMap<String, String> =
        OFF.iter().map(|name| (format!("OPENCODE_DISABLE_{name}"), "1".to_owned())).collect();
    let mut set = |name: &str, value: String| env.insert(name.to_owned(), value);
    set("OPENCODE_PURE", "1".to_owned());
    set("OPENCODE_CONFIG_CONTENT", configuration(settings).to_string());
    set("OPENCODE_SERVER_USERNAME", settings.username.to_owned());
    set("OPENCODE_SERVER_PASSWORD", settings.password.to_owned());
    set("SHELL", tool_shell(settings.state));
    set("HOME", settings.state.to_owned());
    for kind in ["DATA", "CONFIG", "CACHE", "STATE"] {
        set(&format!("XDG_{kind}_HOME"), format!("{}/{}", settings.state, kind.to_lowercase()));
    }
    env
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_child_can_be_made_and_nothing_leaves_but_to_the_proxy() {
        let model = Model { provider: "proxy".to_owned(), model: "m".to_owned() };
        let settings = Settings {
            base_url: "http://127.0.0.53:3129/v1",
            api_key: "placeholder",
            model: &model,
            state: "/state",
            username: "u",
            password: "p",
        };
        let config = configuration(&settings);
        assert_eq!(
            (&config["permission"]["*"], &config["permission"]["task"]),
            (&json!("deny"), &json!("deny"))
        );
        assert_eq!(config["permission"]["StructuredOutput"], "allow");
        for agent in ["general", "explore", "title", "summary"] {
            assert_eq!(config["agent"][agent]["disable"], true, "{agent}");
        }
        assert_eq!(config["enabled_providers"], json!(["proxy"]));
        assert_eq!(config["provider"]["proxy"]["models"]["m"]["name"], "m");
        let env = environment(&settings);
        assert_eq!(env["XDG_DATA_HOME"], "/state/data");
        assert_eq!(env["OPENCODE_DISABLE_MODELS_FETCH"], "1");
    }
}
