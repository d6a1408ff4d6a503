//! An operator's decision over a session whose wipe could not be verified.

use cofferdam_contracts::id::SandboxId;
use cofferdam_contracts::sandbox::{WipeEvidence, WipeStatus};
use cofferdam_contracts::session::{SettleRequest, Settlement, findings};
use cofferdam_ledger::audit::Audit;
use cofferdam_ledger::keys::Principal;

use crate::error::Result;
use crate::runs::Runs;

/// Says so where a wipe could not be verified.
pub fn alert(evidence: &WipeEvidence) {
    if evidence.status == WipeStatus::Failed {
        let (sandbox, found) = (&evidence.sandbox_id, findings(evidence).join("; "));
        tracing::error!(%sandbox, found, "a wipe could not be verified: its session holds its run; see `cofferdam session`");
    }
}

impl Runs {
    /// Ends a held session on the operator's word, which is recorded with the evidence that it overrules.
    pub async fn settle(
        &self,
        who: &Principal,
        sandbox: &SandboxId,
        request: &SettleRequest,
    ) -> Result<Settlement> {
        let audit = Audit {
            actor: &request.actor,
            reason: &request.reason,
            ..Audit::by(who, "session.settle", sandbox.as_str())
        };
        let settlement = self.ledger.sessions().settle(sandbox, &audit).await?;
        tracing::warn!(%sandbox, actor = request.actor, "a session was settled without a verified wipe");
        Ok(settlement)
    }
}
