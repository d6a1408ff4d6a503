//! Whose key a request carries, and what it may.

use axum::body::Body;
use axum::http::{HeaderMap, Response};
use cofferdam_contracts::key::Role;
use cofferdam_flows::keys::keyless_caller;
use cofferdam_ledger::keys::Principal;

use crate::answer;
use crate::services::Services;

/// Whose key a request carries.
pub(crate) async fn caller(
    services: &Services,
    headers: &HeaderMap,
) -> Result<Principal, Response<Body>> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let bearer = text("authorization").and_then(|value| value.strip_prefix("Bearer "));
    let Some(secret) = text("x-api-key").or(bearer) else {
        return match services.site.no_auth {
            true => keyless_caller().map_err(|refusal| answer::refused(refusal.into())),
            false => Err(answer::error(401, "an API key is needed: X-API-Key")),
        };
    };
    let found = services.flows.ledger.keys().principal(secret.trim()).await;
    let found = found.map_err(|error| answer::refused(error.into()))?;
    found.ok_or_else(|| answer::error(401, "the API key is unknown or revoked"))
}

/// Whether who asks may: a submitter, or who reads.
pub(crate) fn may(who: &Principal, writes: bool) -> bool {
    let reads = [Role::Approver, Role::Operator, Role::Auditor];
    who.has(Role::Submitter) || !writes && reads.into_iter().any(|role| who.has(role))
}

#[cfg(test)]
mod tests {

    use super::*;

    #[test]
    fn who_only_reads_creates_nothing() {
        let key = |role| Principal {
            key_id: "k".into(),
            tenant: cofferdam_contracts::id::TenantId::parse("t").unwrap(),
            roles: vec![role],
        };
        assert!(may(&key(Role::Submitter), true) && may(&key(Role::Admin), true));
        assert!(may(&key(Role::Auditor), false) && !may(&key(Role::Auditor), true));
    }
}
