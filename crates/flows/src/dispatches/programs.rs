//! Which executables the kernel holds, and which names nothing holds: only what was held is recorded as in force.

use std::collections::BTreeMap;
use std::path::Path;

use cofferdam_contracts::dispatch::{AgentType, AgentWork};
use cofferdam_contracts::error::Refusal;
use cofferdam_contracts::sandbox::{CommandPolicy, IsolationClass};

use super::tools::{self, SHELL, Tools};

/// Where programs of the host lie, as a sandbox on the host's `/usr` has them.
const BINS: [&str; 4] = ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin"];
/// Where else a sandbox looks for an agent's programs.
const PLACES: [&str; 1] = ["/opt/agents/bin"];
/// What an agent without a shell executes for tools of its own: search and snapshots.
const INNER: [&str; 2] = ["git", "rg"];

const UNKNOWN: &str = "names no program of the sandbox";
const CLASS: &str = "only the class `container` holds which programs an agent executes";

/// What the kernel is to hold: the policy's executables, and none where the agent has no shell.
pub(super) fn of(work: &AgentWork) -> CommandPolicy {
    let mut policy = work.commands.clone().unwrap_or_default();
    // Work that was stored before `commands` existed names programs among the tools.
    let stored = |list: &Option<Vec<String>>| -> Option<Vec<String>> {
        let names = list.iter().flatten().filter(|name| !tools::is_tool(name));
        Some(names.cloned().collect::<Vec<_>>()).filter(|names| !names.is_empty())
    };
    policy.allowed = policy.allowed.or_else(|| stored(&work.tools_allowed));
    policy.denied = policy.denied.or_else(|| stored(&work.tools_denied));
    let tools = Tools::new(work.tools_allowed.as_deref(), work.tools_denied.as_deref());
    let is_agent = work.agent_type != AgentType::Command;
    if is_agent && policy.allowed.is_none() && !tools.has(SHELL) {
        policy.allowed = Some(INNER.map(str::to_owned).to_vec());
    }
    policy
}

/// The field of a policy on executables that this class does not hold, and why.
pub(super) fn unsupported_field(
    work: &AgentWork,
    class: IsolationClass,
) -> Option<(&'static str, &'static str)> {
    if class == IsolationClass::Container {
        return None;
    }
    let commands = work.commands.clone().unwrap_or_default();
    let is_stored =
        |list: &Option<Vec<String>>| list.iter().flatten().any(|name| !tools::is_tool(name));
    // An agent with events of its own is counted by them in every class.
    let counts = work.max_commands.is_some() && work.agent_type == AgentType::Command;
    let asks = [
        ("commands.allowed", commands.allowed.is_some()),
        ("commands.denied", commands.denied.is_some()),
        ("tools_allowed", is_stored(&work.tools_allowed)),
        ("tools_denied", is_stored(&work.tools_denied)),
        ("max_commands", counts),
    ];
    asks.into_iter().find(|(_, asked)| *asked).map(|(field, _)| (field, CLASS))
}

/// Refuses at submission what the class that the request asks for does not hold.
pub(super) fn check(work: &AgentWork) -> Result<(), Refusal> {
    match unsupported_field(work, work.request.class_min()) {
        None => Ok(()),
        Some((field, why)) => {
            let why = format!("{why}; leave it out, or ask for no stronger class");
            Err(tools::refusal(&format!("sandbox_spec.{field}"), &why))
        }
    }
}

/// The executables as they were held, and by name why others were not. `is_there` says whether a program is, where
/// that is known. Pure.
pub(super) fn resolve(
    work: &AgentWork,
    is_there: impl Fn(&str) -> Option<bool>,
) -> (Option<CommandPolicy>, BTreeMap<String, String>) {
    let mut policy = of(work);
    let mut unheld = BTreeMap::new();
    if let Some(denied) = &mut policy.denied {
        denied.retain(|name| {
            let is_gone = is_there(name) == Some(false);
            if is_gone {
                unheld.insert(name.clone(), UNKNOWN.to_owned());
            }
            !is_gone
        });
    }
    (Some(policy).filter(|policy| *policy != CommandPolicy::default()), unheld)
}

/// Whether a program is in a sandbox on the host's own `/usr`; an image's are not known here.
pub(super) fn is_there(work: &AgentWork, tool: &str) -> Option<bool> {
    if work.request.env_ref != "host" {
        return None;
    }
    let mounts = work.request.spec.as_ref().and_then(|spec| spec.mounts.as_deref());
    let targets = || mounts.into_iter().flatten().map(|mount| Path::new(&mount.target));
    let is_mounted = |target: &Path| {
        target == Path::new(tool) || target.file_name().is_some_and(|name| name == tool)
    };
    // Only the host's `/usr`, which every sandbox shows: anything else is unknown.
    let found = match tool.starts_with('/') {
        true if !tool.starts_with("/usr/") => return None,
        true => Path::new(tool).exists(),
        false => BINS.iter().any(|dir| Path::new(dir).join(tool).exists()),
    };
    if found || targets().any(is_mounted) {
        return Some(true);
    }
    // A whole directory of programs may hold it.
    let holds =
        |target: &Path| PLACES.iter().chain(&BINS).any(|dir| Path::new(dir).starts_with(target));
    if targets().any(holds) { None } else { Some(false) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dispatches::work::sample;
    use serde_json::json;

    fn names(list: &[&str]) -> Option<Vec<String>> {
        Some(list.iter().map(|name| (*name).to_owned()).collect())
    }

    #[test]
    fn d_r4_only_what_the_kernel_holds_is_recorded_as_held() {
        let spec = json!({"commands": {"denied": ["curl", "nosuchprogram"]}, "tools_denied": ["WebFetch"]});
        let (policy, unheld) = resolve(&sample("claude", spec), |tool| Some(tool == "curl"));
        assert_eq!(policy.unwrap().denied, names(&["curl"]));
        assert_eq!(unheld.keys().collect::<Vec<_>>(), ["nosuchprogram"]);
    }

    #[test]
    fn an_agent_without_a_shell_executes_nothing_of_its_model() {
        let allowed = |spec| of(&sample("claude", spec)).allowed;
        assert_eq!(
            allowed(json!({"tools_allowed": ["Read", "Grep", "Bash"]})),
            None,
            "any command"
        );
        assert_eq!(allowed(json!({"tools_allowed": ["Read", "Grep"]})), names(&INNER));
        assert_eq!(allowed(json!({"tools_denied": ["Bash"]})), names(&INNER));
        let both = json!({"tools_allowed": ["Bash"], "commands": {"allowed": ["git"]}});
        assert_eq!(allowed(both), names(&["git"]));
    }

    #[test]
    fn work_stored_before_commands_existed_keeps_its_programs() {
        let mut old = sample("codex", json!({}));
        old.tools_allowed = names(&["cat", "Bash"]);
        old.tools_denied = names(&["curl"]);
        let policy = of(&old);
        assert_eq!((policy.allowed, policy.denied), (names(&["cat"]), names(&["curl"])));
    }

    #[test]
    fn a_class_refuses_by_the_field_what_it_does_not_hold() {
        use IsolationClass::{Container, Gvisor, Microvm};
        for (agent, spec, refused) in [
            ("command", json!({}), None),
            ("command", json!({"max_commands": 3}), Some("max_commands")),
            ("codex", json!({"max_commands": 3}), None),
            ("codex", json!({"commands": {"denied": ["curl"]}}), Some("commands.denied")),
            ("claude", json!({"tools_denied": ["Bash"]}), None),
        ] {
            let mut work = sample(agent, spec.clone());
            for (class, refused) in [(Container, None), (Gvisor, refused), (Microvm, refused)] {
                let field = unsupported_field(&work, class).map(|(field, _)| field);
                assert_eq!(field, refused, "{spec} {class:?}");
            }
            let sandbox = work.request.spec.as_mut().unwrap();
            sandbox.isolation = serde_json::from_value(json!({"class_min": "gvisor"})).unwrap();
            assert_eq!(check(&work).is_err(), refused.is_some(), "at submission: {spec}");
        }
    }
}
