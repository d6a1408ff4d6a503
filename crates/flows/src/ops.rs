//! Steering workflows: cancel, resume, fork, each with its audit row.

use cofferdam_contracts::error::{ErrorCode, Refusal, Violation};
use cofferdam_contracts::id::{RunId, WorkflowId};
use cofferdam_contracts::key::Role;
use cofferdam_contracts::ops::{OpsRequest, OpsResponse};
use cofferdam_ledger::audit::Audit;
use cofferdam_ledger::keys::Principal;
use cofferdam_ledger::ops::Cancels;
use serde_json::{Value, json};

use crate::error::{Error, Result};
use crate::runs::Runs;

fn audit<'a>(
    who: &'a Principal,
    op: &'a str,
    on: &'a WorkflowId,
    action: &'a OpsRequest,
    detail: Option<Value>,
) -> Audit<'a> {
    let (actor, reason) = (&action.actor, &action.reason);
    Audit { actor, reason, detail, ..Audit::by(who, op, on.as_str()) }
}

fn accepted(workflow: &WorkflowId) -> OpsResponse {
    OpsResponse {
        accepted: true,
        workflow_id: workflow.clone(),
        forked_workflow_id: None,
        new_run_id: None,
    }
}

fn no_step(action: &OpsRequest) -> Result<(), Refusal> {
    if action.step_n.is_some() {
        return Err(Refusal::violations(&[Violation {
            instance_path: "/stepN".into(),
            message: "stepN belongs to fork".into(),
        }]));
    }
    Ok(())
}

impl Runs {
    /// Cancels a workflow with everything below it.
    pub async fn cancel(
        &self,
        who: &Principal,
        on: &WorkflowId,
        action: &OpsRequest,
    ) -> Result<OpsResponse> {
        no_step(action)?;
        // A submitter's own run is its own to end.
        let whose = if who.has(Role::Operator) { Cancels::All } else { Cancels::Own };
        self.ledger.ops().cancel(on, whose, &audit(who, "cancel", on, action, None)).await?;
        Ok(accepted(on))
    }

    /// Puts a canceled workflow back.
    pub async fn resume(
        &self,
        who: &Principal,
        on: &WorkflowId,
        action: &OpsRequest,
    ) -> Result<OpsResponse> {
        no_step(action)?;
        self.ledger.ops().resume(on, &audit(who, "resume", on, action, None)).await?;
        Ok(accepted(on))
    }

    /// Repeats a run from a step as a new run.
    pub async fn fork(
        &self,
        who: &Principal,
        on: &WorkflowId,
        action: &OpsRequest,
    ) -> Result<OpsResponse> {
        let step_n = action.step_n.ok_or_else(|| {
            Refusal::violations(&[Violation {
                instance_path: "/stepN".into(),
                message: "fork needs the first step that executes again".into(),
            }])
        })?;
        let source = self
            .ledger
            .ops()
            .get(&who.tenant, on)
            .await?
            .ok_or_else(|| Refusal::not_found("workflow"))?;
        let Some(run) = self.ledger.ops().run(&who.tenant, &source.workflow_id).await? else {
            return Err(Refusal::new(ErrorCode::StateConflict, "fork the run, not its task").into());
        };
        self.ledger.erasures().refuse(&run, None).await?;
        let mut new = self
            .ledger
            .runs()
            .template(&who.tenant, &run)
            .await?
            .ok_or_else(|| Refusal::not_found("run"))?;
        let n = self.ledger.ops().forks(on).await? + 1;
        new.workflow_id = WorkflowId::parse(&format!("{on}.f{n}")).map_err(|_| {
            Refusal::new(
                ErrorCode::StateConflict,
                "forks of forks end here: their ids would be too long; fork an earlier run",
            )
        })?;
        new.id =
            RunId::parse(&format!("rn_{}", self.ids.hex(&format!("run:{}", new.workflow_id), 16)))
                .map_err(Error::corrupt("id"))?;
        new.retry_of = Some(run);
        new.asked_by = Some(who.key_id.clone());
        let detail =
            json!({"forkedWorkflowID": new.workflow_id, "newRunId": new.id, "stepN": step_n});
        self.ledger
            .ops()
            .fork(on, step_n, &new, &audit(who, "fork", on, action, Some(detail)))
            .await?;
        Ok(OpsResponse {
            forked_workflow_id: Some(new.workflow_id),
            new_run_id: Some(new.id),
            ..accepted(on)
        })
    }
}
