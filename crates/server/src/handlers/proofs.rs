//! Proofs over HTTP: scoped to what the key may see.

use crate::answer::{AnswerResult, ok};
use crate::call::Call;

pub(crate) async fn run_proofs(call: Call) -> AnswerResult {
    let reads_objects = !call.flag("skipObjects")?;
    let run = call.run_id().await?;
    let tenant = Some(call.who.tenant.as_str());
    ok(&call.flows().objects.prove(Some(run.as_str()), tenant, reads_objects).await?)
}

/// The host's own admin sees every tenant; anybody else their own.
pub(crate) async fn all_proofs(call: Call) -> AnswerResult {
    let reads_objects = !call.flag("skipObjects")?;
    let tenant = (!call.who.is_host_admin()).then(|| call.who.tenant.as_str());
    ok(&call.flows().objects.prove(None, tenant, reads_objects).await?)
}
