//! When a sandbox is to end.

use cofferdam_contracts::id::LiveId;
use cofferdam_live::ExtendSandbox;
use schemars::JsonSchema;
use serde::Deserialize;

use crate::call::{Call, Outcome};
use crate::sandbox::bodies::{OLD_S, TimeoutRequest};
use crate::sandbox::refusals::{found, missing};
use crate::{answer, body};

/// How long a sandbox is to live at least.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RefreshRequest {
    /// Seconds from now.
    duration: Option<u64>,
}

pub(crate) async fn timeout(call: Call) -> Outcome {
    let id = &call.param("id");
    let live = LiveId::parse(id).map_err(|_| missing(id))?;
    let Call { services, who, body, .. } = call;
    let asked: TimeoutRequest = body::body(body).await?;
    let seconds = asked.timeout.ok_or_else(|| answer::error(400, "timeout is missing"))?;
    let extend = ExtendSandbox { who, id: live, seconds, longer: false };
    let extended = services.live.ask(extend).await;
    extended.map_err(|error| found(id, error))?;
    Ok(answer::empty(204))
}

pub(crate) async fn refresh(call: Call) -> Outcome {
    let id = &call.param("id");
    let live = LiveId::parse(id).map_err(|_| missing(id))?;
    let Call { services, who, body, .. } = call;
    let asked: RefreshRequest = body::body(body).await?;
    let seconds = asked.duration.unwrap_or(OLD_S);
    let extend = ExtendSandbox { who, id: live, seconds, longer: true };
    let extended = services.live.ask(extend).await;
    extended.map_err(|error| found(id, error))?;
    Ok(answer::empty(204))
}
