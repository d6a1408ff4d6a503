//! Delegations: a key answers gates in another's place, until then. Each, and its end, is a row
//! that stays.

use cofferdam_contracts::delegation::{DelegationRequest, DelegationRow};
use cofferdam_contracts::error::{ErrorCode, Refusal};
use cofferdam_contracts::key::Role;
use cofferdam_ledger::gates::NewDelegation;
use cofferdam_ledger::keys::Principal;

use crate::error::Result;
use crate::gates::reply::Gates;

impl Gates {
    /// Gives the caller's own standing to another key.
    pub async fn delegate(
        &self,
        who: &Principal,
        request: &DelegationRequest,
    ) -> Result<DelegationRow> {
        if request.to == who.key_id {
            return Err(Refusal::new(
                ErrorCode::PolicyViolation,
                "a key answers in its own place without a delegation",
            )
            .into());
        }
        let made = self
            .ledger
            .delegations()
            .create(&NewDelegation {
                tenant: &who.tenant,
                from: &who.key_id,
                to: &request.to,
                group: request.group.as_ref(),
                ttl_s: request.ttl_s,
                reason: request.reason.as_deref().unwrap_or(""),
            })
            .await?;
        Ok(made)
    }

    /// Ends a delegation: the giver its own, an admin any.
    pub async fn end_delegation(&self, who: &Principal, id: i64) -> Result<()> {
        let anybody = who.roles.contains(&Role::Admin);
        Ok(self.ledger.delegations().end(&who.tenant, id, &who.key_id, anybody).await?)
    }
}
