//! A resume of a paused sandbox, with its new timeout.

use cofferdam_contracts::id::LiveId;
use cofferdam_live::{RefuseForeign, ResumeOptions, ResumeSandbox};

use crate::call::{Call, Outcome};
use crate::sandbox::answers::Sandbox;
use crate::sandbox::bodies::{OLD_S, TimeoutRequest};
use crate::sandbox::refusals::{found, missing};
use crate::{answer, body};

pub(crate) async fn resume(call: Call) -> Outcome {
    let id = &call.param("id");
    let live = LiveId::parse(id).map_err(|_| missing(id))?;
    let Call { services, who, domain, body, .. } = call;
    let asked: TimeoutRequest = body::body(body).await?;
    let seconds = asked.timeout.unwrap_or(OLD_S);
    let options = ResumeOptions::of(Some(seconds), asked.auto_pause, asked.memory);
    let resume = ResumeSandbox { who, id: live.clone(), options };
    let resumed = services.live.ask(resume).await;
    if let Some(guest) = resumed.map_err(|error| found(id, error))? {
        return Ok(answer::json_of(201, &Sandbox::of(&guest.facts, &domain)));
    }
    // Older clients take a 409 for a success: it runs already, and here.
    let elsewhere = services.live.ask(RefuseForeign { id: live }).await;
    elsewhere.map_err(|error| found(id, error))?;
    Err(answer::error(409, format!("sandbox {id} is not paused: it runs already, or starts")))
}
