//! The plan of a task's sandbox, or the end of a task that gets none.

use cofferdam_contracts::dispatch::AgentWork;
use cofferdam_contracts::floor::ClassFloor;
use cofferdam_contracts::id::SandboxId;
use cofferdam_contracts::run::ExecutionMode;
use cofferdam_contracts::sandbox::{ErrCode, IsolationClass, SandboxRequest};
use cofferdam_ledger::tasks::TaskContext;
use cofferdam_sandbox::image::ServiceRoots;
use cofferdam_sandbox::{Host, Plan, plan_with, verify_absent};

use crate::attempt::{End, blank};
use crate::decide::MAX_EXECUTIONS;
use crate::dispatches;
use crate::egress;
use crate::executor::Executor;

/// An end at which no sandbox was made: nothing of it may exist, which is looked for all the same.
pub(crate) async fn unmade(
    executor: &Executor,
    task: &TaskContext,
    sandbox: &SandboxId,
    code: ErrCode,
    cause: String,
) -> End {
    let state_dir = executor.host.facts().state_dir.clone();
    let evidence = verify_absent(&executor.host, sandbox, &state_dir, "boot-fail").await;
    End::bare(blank(task, sandbox.as_str(), code, Some(cause)), Some(evidence))
}

/// The end of one that was canceled before it had a sandbox.
pub(crate) async fn canceled(executor: &Executor, task: &TaskContext, sandbox: &SandboxId) -> End {
    let cause = "canceled".to_owned();
    let end = unmade(executor, task, sandbox, ErrCode::CmdNonzero, cause).await;
    End { canceled: true, ..end }
}

/// The plan of a task's sandbox, and the host that it is made for.
#[derive(Debug)]
pub struct HostPlan<'a> {
    /// Host that makes the sandbox; `open_host` for tasks of the host's own admin.
    pub host: &'a Host,
    /// Every decision about the sandbox: class, runtime, configuration and mounts.
    pub plan: Plan,
}

/// Why a task gets no sandbox.
#[derive(Debug)]
pub struct PlanFailure {
    code: ErrCode,
    cause: String,
    end: fn(End) -> End,
}

impl PlanFailure {
    /// The task's end, at which nothing of a sandbox may be there.
    pub(crate) async fn end(
        self,
        executor: &Executor,
        task: &TaskContext,
        id: &SandboxId,
    ) -> Box<End> {
        Box::new((self.end)(unmade(executor, task, id, self.code, self.cause).await))
    }
}

/// The plan of a task's sandbox on the images of its services, or why it is to have none.
pub(crate) fn planned<'a>(
    executor: &'a Executor,
    task: &TaskContext,
    request: &SandboxRequest,
    agent: Option<&AgentWork>,
    roots: ServiceRoots,
    id: &SandboxId,
) -> Result<HostPlan<'a>, PlanFailure> {
    if task.execution_no > MAX_EXECUTIONS {
        let cause = format!(
            "its worker was lost {MAX_EXECUTIONS} times while it ran; it is not started again"
        );
        return Err(PlanFailure { code: ErrCode::CmdNonzero, cause, end: |end| end });
    }
    if let Some(cause) = egress::drift(request, &task.egress) {
        return Err(PlanFailure { code: ErrCode::BootFail, cause, end: End::refused_everywhere });
    }
    let host = if task.by_host_admin { &executor.open_host } else { &executor.host };
    let planned = plan_with(host.facts(), request, id, roots).map_err(|e| e.to_string()).and_then(
        |mut plan| match agent {
            Some(agent) => dispatches::jail(&mut plan, agent).map(|()| plan),
            None => Ok(plan),
        },
    );
    if let (Ok(plan), Some(least)) = (&planned, &task.class_floor)
        && plan.class.strength() < least.value
    {
        let cause = below(least, plan.class.strength());
        return Err(PlanFailure { code: ErrCode::BootFail, cause, end: End::refused });
    }
    let planned = planned.and_then(|plan| match elsewhere(task, &plan) {
        Some(why) => Err(why),
        None => Ok(plan),
    });
    match planned {
        Ok(plan) => Ok(HostPlan { host, plan }),
        Err(e) => {
            let cause = format!("this host cannot enforce {e}");
            Err(PlanFailure { code: ErrCode::BootFail, cause, end: End::refused })
        }
    }
}

/// The least class was raised after this task was planned: what was approved is not what may run. Pure.
fn below(least: &ClassFloor, class: IsolationClass) -> String {
    format!(
        "policy_violation: {}; it was planned before that: start it again, or fork it from step 0, and it is planned for \
         that class",
        least.refuse("this task's sandbox", class).message
    )
}

/// Why this worker's sandbox would not be where its run is to be. Pure.
fn elsewhere(task: &TaskContext, plan: &Plan) -> Option<String> {
    let (own, wanted) = (ExecutionMode::of_runtime(&plan.runtime.name), task.mode_wanted?);
    (own != wanted)
        .then(|| format!("executionMode {}: its sandboxes are {}", wanted.as_str(), own.as_str()))
}
