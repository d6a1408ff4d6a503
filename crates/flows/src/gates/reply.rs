//! Replies: HTTP, command line, webhooks and links all answer a gate through [`reply`].

use std::sync::Arc;

use cofferdam_contracts::canonical::digest;
use cofferdam_contracts::error::{ErrorCode, Refusal};
use cofferdam_contracts::gate::{
    ApprovePlanRequest, ApprovePlanResponse, GateState, HitlEvent, Origin, ReplyRequest,
    ReplyResponse,
};
use cofferdam_contracts::id::{GateKey, RunId};
use cofferdam_contracts::instant::Instant;
use cofferdam_contracts::reply::{Answer, Outcome, decide_link, decide_reply};
use cofferdam_ledger::Ledger;
use cofferdam_ledger::failpoint::fail_point;
use cofferdam_ledger::gates::{Reply, ReplyReceipt};
use cofferdam_ledger::keys::Principal;
use serde_json::json;

use crate::checks;
use crate::error::Result;
use crate::guesses::Guesses;
use crate::sign::Signer;

/// Answers a gate under its lock: read, decide, record. Each is one turn to the database, since whoever
/// answers waits for all of them.
///
/// # Errors
/// `Refused`: the reply does not count. One that came too late or twice is on record all the same; any other
/// has written nothing.
pub(crate) async fn reply(ledger: &Ledger, reply: &Reply<'_>) -> Result<ReplyReceipt> {
    // Before the lock: no connection is held while many of this tenant wait.
    let place = checks::place(&reply.principal.tenant).await?;
    let mut held = ledger.gates().lock(reply.principal, reply.run_or_workflow, reply.key).await?;
    fail_point("reply.locked");
    let seen = held.read(reply).await?;
    let key_id = &reply.principal.key_id;
    let answer = Answer { key_id, topic: reply.topic, payload: reply.payload };
    let decided = place.run(|| decide_reply(held.gate(), &seen, answer, held.now_us()));
    let outcome = decided.await??;
    let replied = held.record(reply, &outcome).await?;
    match outcome {
        Outcome::Void { refusal, .. } => Err(refusal.into()),
        Outcome::Replay { .. } | Outcome::Counts(_) => Ok(replied),
    }
}

/// Whether a link that `maker` makes could answer this gate.
pub(crate) async fn link_stands(
    ledger: &Ledger,
    maker: &Principal,
    run: &RunId,
    gate: &GateKey,
) -> Result<()> {
    let mut held = ledger.gates().lock(maker, run.as_str(), gate).await?;
    let person = held.person(maker).await?;
    Ok(decide_link(held.gate(), &person)?)
}

/// The gates of runs, and who may answer them in whose place.
#[derive(Debug, Clone)]
pub struct Gates {
    pub(crate) ledger: Ledger,
    /// With what reply links are signed, where this host has it.
    pub(crate) signer: Option<Arc<Signer>>,
    pub(crate) guesses: Arc<Guesses>,
}

impl Gates {
    pub(crate) fn new(ledger: &Ledger, signer: Option<Arc<Signer>>) -> Self {
        Self { ledger: ledger.clone(), signer, guesses: Arc::default() }
    }

    /// Answers a gate for `POST /api/runs/:id/gates/:gate/reply`; `run` may be a workflow's id.
    pub async fn reply(
        &self,
        who: &Principal,
        run: &str,
        gate: &GateKey,
        request: &ReplyRequest,
    ) -> Result<ReplyResponse> {
        let replied = reply(
            &self.ledger,
            &Reply {
                principal: who,
                run_or_workflow: run,
                key: gate,
                topic: request.topic.as_deref(),
                payload: &request.payload,
                dedupe_key: &request.dedupe_key,
                origin: request.origin.unwrap_or(Origin::ApiShim),
                approved_by: &who.key_id,
            },
        )
        .await?;
        Ok(ReplyResponse { ok: true, is_replay: replied.is_replay })
    }

    /// `POST /api/events/hitl`: the same lane.
    pub async fn event(&self, who: &Principal, event: &HitlEvent) -> Result<ReplyResponse> {
        let request = ReplyRequest {
            payload: event.payload.clone(),
            dedupe_key: event.dedupe_key.clone(),
            origin: Some(event.origin),
            topic: Some(event.topic.clone()),
        };
        self.reply(who, event.workflow_id.as_str(), &event.gate_key, &request).await
    }

    /// `POST /api/runs/:id/approve-plan`: a yes to the run's plan gate. Approving again is a replay.
    pub async fn approve_plan(
        &self,
        who: &Principal,
        run: &str,
        request: &ApprovePlanRequest,
    ) -> Result<ApprovePlanResponse> {
        let header = self
            .ledger
            .runs()
            .header(&who.tenant, run)
            .await?
            .ok_or_else(|| Refusal::not_found("run"))?;
        let gate = self
            .ledger
            .gates()
            .views(&header.run_id, None)
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
        let replied = reply(
            &self.ledger,
            &Reply {
                principal: who,
                run_or_workflow: run,
                key: &gate.gate_key,
                topic: None,
                payload: &payload,
                dedupe_key: dedupe.as_str(),
                origin: Origin::ApiShim,
                approved_by: &request.approved_by,
            },
        )
        .await?;
        let run_id: RunId = replied.run;
        Ok(ApprovePlanResponse {
            accepted: true,
            run_id,
            approved_at: Instant::from_ms(replied.at),
            approved_at_ms: replied.at,
        })
    }
}
