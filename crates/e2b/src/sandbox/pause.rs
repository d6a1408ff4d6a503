//! A pause. Clients ask for memory when their user says nothing: a class that keeps files alone gives these.

use cofferdam_contracts::error::ErrorCode;
use cofferdam_contracts::id::LiveId;
use cofferdam_contracts::live::LiveState;
use cofferdam_flows::Error;
use cofferdam_live::{PauseSandbox, ViewSandbox};
use schemars::JsonSchema;
use serde::Deserialize;

use crate::call::{Call, Outcome};
use crate::sandbox::refusals::{found, missing};
use crate::{answer, body};

/// What a pause keeps.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct PauseRequest {
    /// `false` keeps the files only. A class without memory in its pauses keeps the files only in any case: clients send `true` where
    /// their user says nothing.
    pub(crate) memory: Option<bool>,
    /// Accepted, and without effect.
    #[serde(rename = "requireHealthyGuest")]
    _require_healthy_guest: Option<bool>,
}

pub(crate) async fn pause(call: Call) -> Outcome {
    let id = &call.param("id");
    let live = LiveId::parse(id).map_err(|_| missing(id))?;
    let Call { services, who, body, .. } = call;
    let asked: PauseRequest = body::body(body).await?;
    let pause = PauseSandbox { who: who.clone(), id: live.clone(), memory: asked.memory };
    let paused = services.live.ask(pause).await;
    services.clean_up().await;
    let Err(error) = paused else { return Ok(answer::empty(204)) };
    Err(match &error {
        // Clients take a 409 for a success: it is paused already. So nothing else is one.
        Error::Refused(refusal) if refusal.code == ErrorCode::StateConflict => {
            let view = services.live.ask(ViewSandbox { who, id: live }).await;
            let is_paused = view.is_ok_and(|view| view.state == LiveState::Paused);
            if is_paused { answer::refused(error) } else { answer::error(400, &refusal.message) }
        }
        _ => found(id, error),
    })
}
