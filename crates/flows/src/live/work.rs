//! From a request to the work of a task, and the plan around it. Pure.

use cofferdam_contracts::canonical;
use cofferdam_contracts::error::{ErrorCode, Refusal};
use cofferdam_contracts::id::{Digest, LiveId};
use cofferdam_contracts::live::{LiveRequest, LiveWork};
use cofferdam_contracts::plan::{Plan, PlanTask, Work};
use cofferdam_contracts::recipe::{Caps, RecipeRef};
use cofferdam_contracts::sandbox::{DEFAULT_MEM_MB, MAX_TIMEOUT_MS, SandboxRequest};
use cofferdam_ledger::runs::RunContext;
use serde_json::{Value, json};

use crate::error::{Error, Result};

/// The recipe that the run of a sandbox names: it is built in, and only this module starts it. A trigger knows it.
const RECIPE: &str = "sandbox";
const VERSION: &str = "1";
/// The task's name. A trigger knows it.
const TASK: &str = "hold";
/// Sandbox minutes of its run. A sandbox that is extended every day may live for a year.
const CAP_MINUTES: u32 = 366 * 24 * 60;
/// Processes and threads: a shell with a server and its workers needs more than one command does.
const PIDS: u64 = 1_024;
/// The home of `user`, where commands start and relative paths begin.
pub(crate) const HOME: &str = "/home/user";

/// The recipe as runs name it, and its hash.
pub(crate) fn recipe() -> Result<(RecipeRef, Digest)> {
    let reference: RecipeRef = serde_json::from_value(json!({"id": RECIPE, "v": VERSION}))
        .map_err(Error::corrupt("built-in recipe"))?;
    Ok((reference, canonical::digest(&json!({"builtin": RECIPE, "v": VERSION}))?))
}

/// What is asked of the sandbox. Its command is never run, and its environment is not written anywhere.
pub(crate) fn request(asked: &LiveRequest) -> SandboxRequest {
    let mut limits = asked.limits;
    limits.pids = limits.pids.or(Some(PIDS));
    // The layer is memory: one as large as the limit would, once full, have the kernel end the agent too.
    let mem_mb = limits.mem_mb.unwrap_or(DEFAULT_MEM_MB);
    limits.disk_mb = limits.disk_mb.or(Some(mem_mb / 4 * 3));
    SandboxRequest {
        env_ref: "host".to_owned(),
        cmd: vec!["/bin/true".to_owned()],
        files_in: Vec::new(),
        env: std::collections::BTreeMap::new(),
        workdir: None,
        stdin: None,
        timeout_ms: MAX_TIMEOUT_MS,
        limits,
        egress: asked.egress.clone(),
        egress_ask: false,
        secrets: Vec::new(),
        template_key: None,
        deps_hash: None,
        artifacts: Vec::new(),
        build: None,
        repo: None,
        spec: None,
    }
}

/// The work of the task that holds it.
pub(crate) fn of(live: &LiveId, request: SandboxRequest) -> LiveWork {
    LiveWork { live: live.clone(), request }
}

/// The plan of a run, if it is a sandbox's.
pub(crate) fn plan_of(run: &RunContext) -> Option<Result<Plan, Refusal>> {
    let (recipe_ref, recipe_hash) = recipe().ok()?;
    if run.recipe_hash != recipe_hash || run.recipe_id != recipe_ref.id {
        return None;
    }
    let work = run.inputs.get("work").cloned().unwrap_or(Value::Null);
    Some(match serde_json::from_value::<LiveWork>(work) {
        Ok(work) => Ok(Plan {
            recipe_ref,
            recipe_hash,
            gate: None,
            config: Vec::new(),
            caps: Caps { sandbox_minutes: CAP_MINUTES, ..Caps::default() },
            tasks: vec![PlanTask { name: TASK.into(), work: Work::Live(Box::new(work)) }],
        }),
        Err(e) => Err(Refusal::new(ErrorCode::Internal, format!("the sandbox's work: {e}"))),
    })
}
