//! New sandboxes with the files of another one.

use cofferdam_contracts::error::Refusal;
use cofferdam_contracts::id::LiveId;
use cofferdam_live::ForkSandbox;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::call::{Call, Outcome};
use crate::sandbox::answers::Sandbox;
use crate::sandbox::bodies::OLD_S;
use crate::sandbox::refusals::{found, missing};
use crate::{answer, body};

/// How many sandboxes a fork makes.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ForkRequest {
    /// 1 to 20; 1 without it.
    pub(crate) count: Option<u64>,
    /// Seconds that each new sandbox lives; 15 without it.
    pub(crate) timeout: Option<u64>,
}

/// One of the new sandboxes, or why there is none.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ForkResult {
    #[serde(skip_serializing_if = "Option::is_none")]
    sandbox: Option<Sandbox>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<ForkError>,
}

/// Why there is none.
#[derive(Debug, Serialize, JsonSchema)]
struct ForkError {
    code: u16,
    message: String,
}

pub(crate) async fn fork(call: Call) -> Outcome {
    let id = &call.param("id");
    let live = LiveId::parse(id).map_err(|_| missing(id))?;
    let Call { services, who, domain, body, .. } = call;
    let asked: ForkRequest = body::body(body).await?;
    let (count, seconds) = (asked.count.unwrap_or(1), asked.timeout.unwrap_or(OLD_S));
    let fork = ForkSandbox { who, id: live, count, timeout_s: Some(seconds) };
    let forks = services.live.ask(fork).await;
    let forks = forks.map_err(|error| found(id, error))?;
    let forks = forks.into_iter().map(|one| match one {
        Ok(guest) => ForkResult { sandbox: Some(Sandbox::of(&guest.facts, &domain)), error: None },
        Err(error) => {
            let Refusal { code, message, .. } = error.refusal();
            ForkResult { sandbox: None, error: Some(ForkError { code: code.status(), message }) }
        }
    });
    Ok(answer::json_of(201, &forks.collect::<Vec<_>>()))
}
