//! The agent's own tools: which it has, what the kernel holds besides, and what is refused at submission.
//!
//! | a policy says | the agent is told by | the kernel holds |
//! |---|---|---|
//! | no `Bash` | its flags | class `container`: no program but the agent's own may be executed |
//! | neither `Edit` nor `Write`, nor a shell | its flags | the working directory is read-only, in every class |
//! | codex without `Edit` and `Write` | a catalog that has no patch tool for its model | the same |
//! | any other tool | its flags | nothing |
//!
//! A name that an agent cannot be held to is refused by its field, with the remedy.

use cofferdam_contracts::dispatch::AgentType;
use cofferdam_contracts::error::{ErrorCode, Refusal};
use cofferdam_contracts::sandbox::{AccessMode, SandboxSpec};
use serde_json::json;

/// The names, as existing specs and today's agents write them.
const NAMES: [&str; 44] = [
    "Agent",
    "AskUserQuestion",
    "Bash",
    "BashOutput",
    "CronCreate",
    "CronDelete",
    "CronList",
    "Edit",
    "EnterPlanMode",
    "EnterWorktree",
    "ExitPlanMode",
    "ExitWorktree",
    "Glob",
    "Grep",
    "KillShell",
    "LS",
    "ListAgents",
    "ListMcpResources",
    "Monitor",
    "MultiEdit",
    "NotebookEdit",
    "NotebookRead",
    "PushNotification",
    "Read",
    "ReadMcpResource",
    "RemoteTrigger",
    "ReportFindings",
    "ScheduleWakeup",
    "SendMessage",
    "Skill",
    "SlashCommand",
    "Task",
    "TaskCreate",
    "TaskGet",
    "TaskList",
    "TaskOutput",
    "TaskStop",
    "TaskUpdate",
    "TodoWrite",
    "ToolSearch",
    "WebFetch",
    "WebSearch",
    "Workflow",
    "Write",
];
/// The tool that runs commands.
pub(super) const SHELL: &str = "Bash";
/// The tools that write files.
const WRITERS: [&str; 4] = ["Edit", "MultiEdit", "NotebookEdit", "Write"];
/// What an agent calls today what older specs name: who is denied the old one is denied these.
const TODAYS: [(&str, &[&str]); 2] =
    [("Task", &["Agent"]), ("TodoWrite", &["TaskCreate", "TaskGet", "TaskList", "TaskUpdate"])];
/// The tools that codex has.
const CODEX: [&str; 7] = ["Bash", "Edit", "Read", "Task", "TodoWrite", "WebSearch", "Write"];
/// The tools that opencode has.
const OPENCODE: [&str; 11] = [
    "Bash",
    "Edit",
    "Glob",
    "Grep",
    "LS",
    "Read",
    "Task",
    "TodoWrite",
    "WebFetch",
    "WebSearch",
    "Write",
];
/// What codex does by its shell and by no tool that it could be denied.
const CODEX_BY_SHELL: [&str; 5] = ["Glob", "Grep", "LS", "NotebookRead", "Read"];

pub(super) fn is_tool(name: &str) -> bool {
    NAMES.contains(&name)
}

/// A policy on tools.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tools<'a> {
    pub allowed: Option<&'a [String]>,
    pub denied: &'a [String],
}

impl<'a> Tools<'a> {
    pub(super) fn of(spec: &'a SandboxSpec) -> Self {
        Self::new(spec.tools_allowed.as_deref(), spec.tools_denied.as_deref())
    }

    pub(super) fn new(allowed: Option<&'a [String]>, denied: Option<&'a [String]>) -> Self {
        Self { allowed, denied: denied.unwrap_or_default() }
    }

    /// Whether the agent may use this tool.
    pub(super) fn has(&self, tool: &str) -> bool {
        let named = |list: &[String]| list.iter().any(|name| name == tool);
        self.allowed.is_none_or(named) && !named(self.denied)
    }

    pub(super) fn is_restricted(&self) -> bool {
        self.allowed.is_some() || !self.denied.is_empty()
    }

    fn writes(&self) -> bool {
        WRITERS.iter().any(|tool| self.has(tool))
    }
}

/// The names of a list, and those that today's agents have for them.
pub(super) fn todays(names: &[String]) -> Vec<String> {
    let more = names.iter().flat_map(|name| {
        let found = TODAYS.iter().find(|(old, _)| old == name);
        let todays: &[&str] = found.map_or(&[], |(_, todays)| *todays);
        std::iter::once(name.as_str()).chain(todays.iter().copied())
    });
    let mut all: Vec<String> = Vec::new();
    for name in more {
        if !all.iter().any(|known| known == name) {
            all.push(name.to_owned());
        }
    }
    all
}

/// The tools of an allowed list that an agent has and is not denied: what it is offered, as far as that is known before it
/// says so itself.
pub(super) fn offered(agent: AgentType, tools: &Tools<'_>) -> Option<Vec<String>> {
    let has = |name: &&String| match agent {
        AgentType::Codex => CODEX.contains(&name.as_str()),
        AgentType::Opencode => OPENCODE.contains(&name.as_str()),
        AgentType::Claude => is_tool(name),
        AgentType::Command => name.as_str() == SHELL,
    };
    let allowed = tools.allowed?.iter();
    Some(allowed.filter(|name| tools.has(name)).filter(has).cloned().collect())
}

/// What an agent may do with its working directory: the mode that was asked for, or less where it has no tool that
/// writes.
pub(super) fn access(agent: AgentType, spec: &SandboxSpec, mode: AccessMode) -> AccessMode {
    let tools = Tools::of(spec);
    let by_shell = tools.has(SHELL);
    match agent == AgentType::Command || !tools.is_restricted() || tools.writes() || by_shell {
        true => mode,
        false => AccessMode::ReadOnly,
    }
}

/// Refuses what an agent cannot be held to.
pub(super) fn check(agent: AgentType, spec: &SandboxSpec) -> Result<(), Refusal> {
    let lists = [("allowed", &spec.tools_allowed), ("denied", &spec.tools_denied)];
    for (list, names) in lists {
        for (index, name) in names.iter().flatten().enumerate() {
            let field = format!("sandbox_spec.tools_{list}[{index}]");
            let remedy = format!("list programs in sandbox_spec.commands.{list}");
            if !is_tool(name) {
                let why = format!("{name:?} is not a tool ({}); {remedy}", NAMES.join(", "));
                return Err(refusal(&field, &why));
            }
        }
    }
    let commands = spec.commands.clone().unwrap_or_default();
    for (list, names) in [("allowed", &commands.allowed), ("denied", &commands.denied)] {
        let found = names.iter().flatten().enumerate().find(|(_, name)| is_tool(name));
        if let Some((index, name)) = found {
            let field = format!("sandbox_spec.commands.{list}[{index}]");
            let why =
                format!("{name:?} is a tool of the agent; list it in sandbox_spec.tools_{list}");
            return Err(refusal(&field, &why));
        }
    }
    match agent {
        AgentType::Codex => codex(spec),
        AgentType::Opencode => one_tool_writes("opencode", spec),
        AgentType::Claude => Ok(()),
        AgentType::Command => command(spec),
    }
}

/// A command is what an agent does by its shell, and nothing else.
fn command(spec: &SandboxSpec) -> Result<(), Refusal> {
    let tools = Tools::of(spec);
    if tools.has(SHELL) {
        return Ok(());
    }
    let list = if tools.denied.iter().any(|name| name == SHELL) { "denied" } else { "allowed" };
    let why = format!(
        "agent_type `command` is a command, which {SHELL} is; list programs in sandbox_spec.commands.{list}"
    );
    Err(refusal(&format!("sandbox_spec.tools_{list}"), &why))
}

fn codex(spec: &SandboxSpec) -> Result<(), Refusal> {
    let tools = Tools::of(spec);
    one_tool_writes("codex", spec)?;
    for (index, name) in tools.denied.iter().enumerate() {
        let field = format!("sandbox_spec.tools_denied[{index}]");
        if name == "TodoWrite" {
            return Err(refusal(&field, "codex cannot be kept from its plan tool; leave it out"));
        }
        if tools.has(SHELL) && CODEX_BY_SHELL.contains(&name.as_str()) {
            let why = format!("codex does {name} by its shell; deny Bash, or restrict `commands`");
            return Err(refusal(&field, &why));
        }
    }
    Ok(())
}

/// Edit and Write are one tool of this agent, which has it or not.
fn one_tool_writes(agent: &str, spec: &SandboxSpec) -> Result<(), Refusal> {
    let tools = Tools::of(spec);
    if tools.has("Edit") == tools.has("Write") {
        return Ok(());
    }
    let is_denied = tools.denied.iter().any(|name| name == "Edit" || name == "Write");
    let list = if is_denied { "tools_denied" } else { "tools_allowed" };
    let why = format!("{agent} edits and writes by one tool; list Edit and Write together");
    Err(refusal(&format!("sandbox_spec.{list}"), &why))
}

pub(super) fn refusal(field: &str, why: &str) -> Refusal {
    let words = format!("{field}: {why}");
    Refusal::new(ErrorCode::PolicyViolation, words).with(json!({"field": field}))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    fn spec(value: Value) -> SandboxSpec {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn d_r4_a_name_that_is_not_a_tool_is_refused_with_the_remedy() {
        for (agent, value, field, remedy) in [
            (
                "claude",
                json!({"tools_denied": ["Bash", "curl"]}),
                "tools_denied[1]",
                "commands.denied",
            ),
            (
                "codex",
                json!({"tools_allowed": ["NoSuchTool"]}),
                "tools_allowed[0]",
                "commands.allowed",
            ),
            ("command", json!({"tools_denied": ["Bash"]}), "tools_denied", "commands.denied"),
            ("command", json!({"tools_allowed": ["Read"]}), "tools_allowed", "commands.allowed"),
            (
                "claude",
                json!({"commands": {"denied": ["Bash"]}}),
                "commands.denied[0]",
                "tools_denied",
            ),
            ("codex", json!({"tools_denied": ["Read"]}), "tools_denied[0]", "deny Bash"),
            ("codex", json!({"tools_denied": ["Write"]}), "tools_denied", "together"),
            ("opencode", json!({"tools_allowed": ["Edit"]}), "tools_allowed", "together"),
        ] {
            let refusal = check(AgentType::parse(agent).unwrap(), &spec(value)).unwrap_err();
            assert!(refusal.message.contains(field), "{refusal}");
            assert!(refusal.message.contains(remedy), "{refusal}");
        }
    }

    #[test]
    fn the_lists_of_existing_specs_pass_for_every_agent() {
        let seed = spec(json!({"tools_allowed": ["Read", "Grep", "Glob", "Bash"]}));
        for agent in AgentType::ALL.iter().copied() {
            check(agent, &seed).unwrap();
        }
        for agent in [AgentType::Codex, AgentType::Claude, AgentType::Opencode] {
            let mode = access(agent, &seed, AccessMode::WorkspaceWrite);
            assert_eq!(mode, AccessMode::WorkspaceWrite, "what its shell builds is kept");
        }
        let reader = spec(json!({"tools_allowed": ["Read", "Grep"]}));
        assert_eq!(
            access(AgentType::Opencode, &reader, AccessMode::WorkspaceWrite),
            AccessMode::ReadOnly
        );
    }

    #[test]
    fn agents_a7_what_is_offered_is_what_the_agent_has_of_the_list() {
        let seed = spec(json!({"tools_allowed": ["Read", "Grep", "Glob", "Bash"],
            "tools_denied": ["Glob"]}));
        let of = |agent| offered(agent, &Tools::of(&seed)).unwrap().join(" ");
        assert_eq!(of(AgentType::Codex), "Read Bash", "it has no tool that searches");
        assert_eq!(of(AgentType::Opencode), "Read Grep Bash");
        assert_eq!(offered(AgentType::Codex, &Tools::of(&SandboxSpec::default())), None);
    }

    #[test]
    fn agents_b7_todays_names_are_known_and_old_ones_stand_for_them() {
        let names = ["Workflow", "Skill", "SendMessage", "CronCreate", "ListAgents", "TaskCreate"];
        for agent in [AgentType::Codex, AgentType::Claude, AgentType::Opencode] {
            check(agent, &spec(json!({"tools_denied": names}))).unwrap();
        }
        let list = ["TodoWrite".to_owned(), "Task".to_owned(), "TaskGet".to_owned()];
        let todays = todays(&list).join(" ");
        assert_eq!(todays, "TodoWrite TaskCreate TaskGet TaskList TaskUpdate Task Agent");
    }
}
