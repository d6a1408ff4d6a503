//! Proofs over HTTP: scoped to what the key may see.

use crate::answer::{AnswerResult, ok};
use crate::call::Call;

pub(crate) async fn run_proofs(call: Call) -> AnswerResult {
    let run = call.run_id().await?;
    ok(&call.flows().ledger.prove(Some(run.as_str()), Some(call.who.tenant.as_str())).await?)
}

/// The host's own admin sees every tenant; anybody else their own.
pub(crate) async fn all_proofs(call: Call) -> AnswerResult {
    let tenant = (!call.who.is_host_admin()).then(|| call.who.tenant.as_str());
    ok(&call.flows().ledger.prove(None, tenant).await?)
}
