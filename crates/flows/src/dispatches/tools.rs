//! Which of the tools that a policy names the kernel holds, and which nobody does: what is recorded as in force is
//! what was.
//!
//! | name | held by |
//! |---|---|
//! | a program of the sandbox | the kernel |
//! | a tool of the agent's own (`Bash`, `Edit`) | the agent, which is asked by its own flag |
//! | anything else | nobody |

use std::collections::BTreeMap;
use std::path::Path;

use cofferdam_contracts::dispatch::{AgentType, AgentWork};
use cofferdam_contracts::error::{ErrorCode, Refusal};
use cofferdam_contracts::sandbox::SandboxSpec;
use serde_json::json;

/// What `claude` calls its own tools.
const OWN: [&str; 14] = [
    "Bash",
    "Edit",
    "Glob",
    "Grep",
    "LS",
    "MultiEdit",
    "NotebookEdit",
    "NotebookRead",
    "Read",
    "Task",
    "TodoWrite",
    "WebFetch",
    "WebSearch",
    "Write",
];
/// Where programs of the host lie, as a sandbox on the host's `/usr` has them.
const BINS: [&str; 4] = ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin"];
/// Where else a sandbox looks for an agent's programs.
const PLACES: [&str; 1] = ["/opt/agents/bin"];
/// What asks for every program at once, where it is allowed.
const SHELL_TOOL: &str = "Bash";

const ASKED: &str = "is a tool of the agent's own: the agent was asked, and nothing else holds it";
const UNKNOWN: &str = "names neither a program of the sandbox nor a tool of the agent";

pub(super) fn is_own(tool: &str) -> bool {
    OWN.contains(&tool)
}

/// The lists as the kernel holds them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Held {
    pub allowed: Option<Vec<String>>,
    pub denied: Option<Vec<String>>,
    /// By name, why nothing holds it.
    pub unenforced: BTreeMap<String, String>,
}

/// What the kernel is to hold of a policy: programs, and no tool of the agent's.
pub(super) fn programs(work: &AgentWork) -> (Option<Vec<String>>, Vec<String>) {
    let plain = |list: &Vec<String>| {
        list.iter().filter(|tool| !is_own(tool)).cloned().collect::<Vec<String>>()
    };
    let allowed = work.tools_allowed.as_ref().and_then(|list| {
        let programs = plain(list);
        let all = programs.is_empty() && list.iter().any(|tool| tool == SHELL_TOOL);
        (!all).then_some(programs)
    });
    (allowed, work.tools_denied.as_ref().map(plain).unwrap_or_default())
}

/// The policy as it was in force. `is_there` says whether a program is, where that is known. Pure.
pub(super) fn held(work: &AgentWork, is_there: impl Fn(&str) -> Option<bool>) -> Held {
    let (allowed, denied) = programs(work);
    let mut unenforced = BTreeMap::new();
    let lists = [&work.tools_allowed, &work.tools_denied];
    for tool in lists.into_iter().flatten().flatten().filter(|tool| is_own(tool)) {
        unenforced.insert(tool.clone(), ASKED.to_owned());
    }
    let mut there = Vec::with_capacity(denied.len());
    for tool in denied {
        match is_there(&tool) {
            Some(false) => {
                unenforced.insert(tool, UNKNOWN.to_owned());
            }
            Some(true) | None => there.push(tool),
        }
    }
    Held { allowed, denied: work.tools_denied.is_some().then_some(there), unenforced }
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
    // Only the host's `/usr`, which every sandbox shows: of anything else nobody is told whether it is there.
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

/// Refuses a denied tool of an agent's own where the agent has no way to be asked: nobody would hold it.
pub(super) fn check(agent: AgentType, spec: &SandboxSpec) -> Result<(), Refusal> {
    let denied = spec.tools_denied.as_deref().unwrap_or_default();
    match denied.iter().position(|tool| is_own(tool)) {
        Some(index) if agent != AgentType::Claude => {
            let field = format!("sandbox_spec.tools_denied[{index}]");
            let why = format!(
                "{field}: {:?} is a tool of the agent claude, which {} cannot be asked to leave: name a program",
                denied.get(index).map_or("", String::as_str),
                agent.as_str(),
            );
            Err(Refusal::new(ErrorCode::PolicyViolation, why).with(json!({"field": field})))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dispatches::work::work_of;
    use cofferdam_contracts::dispatch::check_spec;
    use cofferdam_contracts::id::DispatchId;

    fn work(agent: &str, spec: serde_json::Value) -> Result<AgentWork, Refusal> {
        let request = json!({"agent_type": agent, "prompt": "p", "project_dir": "/srv/p"});
        let checked = check_spec(&spec, false).unwrap();
        let id = DispatchId::parse("abcd1234").unwrap();
        work_of(&id, &serde_json::from_value(request).unwrap(), Some(&checked))
    }

    #[test]
    fn d_r4_only_what_the_kernel_holds_is_recorded_as_held() {
        let spec = json!({"tools_denied": ["curl", "Bash", "NoSuchProgramAnywhere"]});
        let held = held(&work("claude", spec).unwrap(), |tool| Some(tool == "curl"));
        assert_eq!(held.denied.as_deref(), Some(&["curl".to_owned()][..]));
        let names: Vec<&str> = held.unenforced.keys().map(String::as_str).collect();
        assert_eq!(names, ["Bash", "NoSuchProgramAnywhere"]);
    }

    #[test]
    fn d_r4_a_list_of_the_agents_own_tools_is_no_list_of_programs() {
        let of = |list: serde_json::Value| {
            programs(&work("claude", json!({"tools_allowed": list})).unwrap()).0
        };
        assert_eq!(of(json!(["Read", "Grep", "Glob", "Bash"])), None, "any command");
        assert_eq!(of(json!(["Read", "Grep"])), Some(Vec::new()), "none");
        assert_eq!(of(json!(["Bash", "git"])), Some(vec!["git".to_owned()]));
    }

    #[test]
    fn d_r4_an_agent_that_cannot_be_asked_is_refused_by_the_field() {
        let denied = json!({"tools_denied": ["curl", "Write"]});
        let refusal = work("codex", denied.clone()).unwrap_err();
        assert!(refusal.message.contains("sandbox_spec.tools_denied[1]"), "{refusal}");
        assert!(work("claude", denied).is_ok());
        assert!(work("codex", json!({"tools_allowed": ["Read", "Bash"]})).is_ok());
    }
}
