//! The gate service: HTTP, CLI, webhooks and pages all reply through here.

use cofferdam_contracts::canonical::digest;
use cofferdam_contracts::error::{ErrorCode, Refusal};
use cofferdam_contracts::gate::{
    ApprovePlanRequest, GateState, HitlEvent, Origin, PlanApproved, ReplyAccepted, ReplyRequest,
};
use cofferdam_contracts::id::{GateKey, RunId};
use cofferdam_contracts::instant::Instant;
use cofferdam_ledger::LedgerError;
use cofferdam_ledger::gates::Reply;
use cofferdam_ledger::keys::Principal;
use serde_json::json;

use crate::Flows;

impl Flows {
    /// `POST /api/runs/:id/gates/:gate/reply`.
    pub async fn gate_reply(
        &self,
        who: &Principal,
        run: &str,
        gate: &GateKey,
        request: &ReplyRequest,
    ) -> Result<ReplyAccepted, LedgerError> {
        let replied = self
            .ledger
            .gate_reply(&Reply {
                principal: who,
                run_or_workflow: run,
                key: gate,
                topic: request.topic.as_deref(),
                payload: &request.payload,
                dedupe_key: &request.dedupe_key,
                origin: request.origin.unwrap_or(Origin::ApiShim),
                approved_by: &who.key_id,
            })
            .await?;
        Ok(ReplyAccepted { ok: true, is_replay: replied.is_replay })
    }

    /// `POST /api/events/hitl`: the same lane.
    pub async fn gate_event(
        &self,
        who: &Principal,
        event: &HitlEvent,
    ) -> Result<ReplyAccepted, LedgerError> {
        let request = ReplyRequest {
            payload: event.payload.clone(),
            dedupe_key: event.dedupe_key.clone(),
            origin: Some(event.origin),
            topic: Some(event.topic.clone()),
        };
        self.gate_reply(who, event.workflow_id.as_str(), &event.gate_key, &request).await
    }

    /// `POST /api/runs/:id/approve-plan`: a yes to the run's plan gate. Approving again is a replay.
    pub async fn plan_approve(
        &self,
        who: &Principal,
        run: &str,
        request: &ApprovePlanRequest,
    ) -> Result<PlanApproved, LedgerError> {
        let header = self
            .ledger
            .run_header(&who.tenant, run)
            .await?
            .ok_or_else(|| Refusal::not_found("run"))?;
        let gate = self
            .ledger
            .gate_views(&header.run_id, None)
            .await?
            .into_iter()
            // The first round: what was asked again afterwards is answered by name, since a yes that is
            // repeated must never become a yes to something else.
            .find(|g| g.gate_key.as_str().starts_with("approve-plan"))
            .ok_or_else(|| {
                Refusal::new(ErrorCode::StateConflict, "the run has no plan gate open")
            })?;
        if gate.state == GateState::TimedOut {
            return Err(Refusal::new(
                ErrorCode::StateConflict,
                "the plan gate's deadline has passed",
            )
            .into());
        }
        let payload = match &request.notes {
            Some(notes) => json!({"choice": "yes", "rationale": notes}),
            None => json!({"choice": "yes"}),
        };
        let dedupe = digest(&json!(["approve-plan", header.run_id, request.approved_by, payload]))?;
        let replied = self
            .ledger
            .gate_reply(&Reply {
                principal: who,
                run_or_workflow: run,
                key: &gate.gate_key,
                topic: None,
                payload: &payload,
                dedupe_key: dedupe.as_str(),
                origin: Origin::ApiShim,
                approved_by: &request.approved_by,
            })
            .await?;
        let run_id: RunId = replied.run;
        Ok(PlanApproved {
            accepted: true,
            run_id,
            approved_at: Instant::from_ms(replied.at),
            approved_at_ms: replied.at,
        })
    }
}
