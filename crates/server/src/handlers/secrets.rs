//! `/api/secrets`: values come in, and none goes out.

use cofferdam_contracts::id::SecretName;
use cofferdam_contracts::secret::SecretRemoval;

use crate::answer::{AnswerResult, ok};
use crate::call::Call;

pub(crate) async fn list(call: Call) -> AnswerResult {
    ok(&call.flows().ledger.secrets().list(&call.who.tenant).await?)
}

pub(crate) async fn put(mut call: Call) -> AnswerResult {
    let name: SecretName = call.id("secret")?;
    let body = call.body()?;
    ok(&call.flows().secrets.put(&call.who, &name, body).await?)
}

pub(crate) async fn rotate(mut call: Call) -> AnswerResult {
    let name: SecretName = call.id("secret")?;
    let body = call.body()?;
    ok(&call.flows().secrets.rotate(&call.who, &name, body).await?)
}

pub(crate) async fn remove(call: Call) -> AnswerResult {
    let name: SecretName = call.id("secret")?;
    call.flows().secrets.remove(&call.who, &name).await?;
    ok(&SecretRemoval { removed: name })
}
