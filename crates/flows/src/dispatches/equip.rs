//! The program of an agent, given to its sandbox by the worker where the spec gives none.

use std::path::Path;

use cofferdam_ambient::env;
use cofferdam_contracts::dispatch::{AgentType, AgentWork};
use cofferdam_contracts::sandbox::{AccessMode, Mount, SandboxSpec};
use cofferdam_sandbox::{AgentProgram, agent_program};

use super::agents::program;

/// The work with its agent's program among its mounts.
///
/// # Errors
/// Why there is none on this host, in words.
pub(crate) fn equipped(
    state: &Path,
    by_host_admin: bool,
    work: &AgentWork,
) -> Result<AgentWork, String> {
    if is_given(work) {
        return Ok(work.clone());
    }
    let name = work.agent_type.as_str();
    // A program of the operator's own `PATH` lies where a tenant may have no reach; an installed one is for everybody.
    let path = env::var_os("PATH").filter(|_| by_host_admin);
    let path = path.unwrap_or_else(|| "/usr/local/bin:/usr/bin".into());
    match agent_program(state, name, Some(&path)) {
        Ok(AgentProgram::Shown) => Ok(work.clone()),
        Ok(AgentProgram::At(file)) => {
            let source = file.to_str().ok_or("the path of its program is not UTF-8")?;
            Ok(with(work, source))
        }
        Err(error) => Err(error.to_string()),
    }
}

/// Whether the spec gives the program itself: by a mount of its name, or above its place, or by an image that has its own.
fn is_given(work: &AgentWork) -> bool {
    let place = program(work.agent_type);
    let is_above = |target: &str| {
        let target = Path::new(target);
        target.ends_with(work.agent_type.as_str()) || Path::new(&place).starts_with(target)
    };
    let mounts = work.request.spec.as_ref().and_then(|spec| spec.mounts.as_deref());
    work.agent_type == AgentType::Command
        || work.request.env_ref != "host"
        || mounts.into_iter().flatten().any(|mount| is_above(&mount.target))
}

fn with(work: &AgentWork, source: &str) -> AgentWork {
    let mut work = work.clone();
    let spec = work.request.spec.get_or_insert_with(SandboxSpec::default);
    spec.mounts.get_or_insert_default().push(Mount {
        source: source.to_owned(),
        target: program(work.agent_type),
        access: AccessMode::ReadOnly,
    });
    work
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dispatches::work::sample;
    use serde_json::json;

    #[test]
    fn agents_b1_a_program_of_the_specs_own_is_not_looked_for() {
        let at = |target: &str| json!({"mounts": [{"source": "/x", "target": target}]});
        for spec in [
            at("/opt/agents/bin/codex"),
            at("/opt/agents/bin"),
            at("/opt"),
            json!({"image": "image:a"}),
        ] {
            assert!(is_given(&sample("codex", spec.clone())), "{spec}");
        }
        for spec in [json!({}), at("/opt/agents/bin/claude"), at("/home/agent")] {
            assert!(!is_given(&sample("codex", spec.clone())), "{spec}");
        }
        assert!(is_given(&sample("command", json!({}))));
        let mounted = with(&sample("codex", json!({})), "/opt/codex");
        assert!(is_given(&mounted));
    }
}
