//! The record of a patch that was written to a repository, bound to the approval of exactly it.

use cofferdam_contracts::error::{ErrorCode, Refusal};
use cofferdam_contracts::patch::{AppliedRow, ApplyRecord, Target, apply_recipe, is_receipt_of};
use cofferdam_contracts::run::RunHeader;
use cofferdam_ledger::keys::Principal;
use serde_json::Value;

use crate::Flows;
use crate::error::Result;

impl Flows {
    /// Records where a run's patch was written, once for each approval. Whoever says it again gets the row that stands.
    ///
    /// # Errors
    /// `state_conflict` where nobody agreed in the named run, or to something else; `conflict` where the approval was used
    /// for another commit.
    pub async fn apply_record(
        &self,
        who: &Principal,
        run: &RunHeader,
        new: &ApplyRecord,
    ) -> Result<AppliedRow> {
        let header = self.ledger.runs().header(&who.tenant, new.approved_in.as_str()).await?;
        let header = header.ok_or_else(|| Refusal::not_found("run"))?;
        let context = self.ledger.runs().context(header.workflow_id.as_str()).await?;
        let context = context.ok_or_else(|| Refusal::not_found("run"))?;
        let target = Target {
            run: &run.run_id,
            status: run.status,
            task: new.task.as_str(),
            repo: &new.repo,
            branch: &new.branch,
        };
        let receipt = context.inputs.get("receipt").and_then(Value::as_str).unwrap_or_default();
        let other = |why: &str| {
            let why = format!("run {} {why}", new.approved_in);
            Refusal::new(ErrorCode::StateConflict, why)
        };
        let is_gate = context.recipe_id == apply_recipe(None)?.id;
        if !is_gate || !is_receipt_of(receipt, &new.patch, &target, &new.base) {
            return Err(other("is not the gate of this patch, repository and branch").into());
        }
        let row = self.ledger.applies().record(&run.run_id, &who.key_id, new).await?;
        let row = row.ok_or_else(|| other("did not approve it"))?;
        if row.written != *new {
            let why = format!("the approval was used for commit {}", row.written.commit);
            return Err(Refusal::new(ErrorCode::Conflict, why).into());
        }
        Ok(row)
    }
}
