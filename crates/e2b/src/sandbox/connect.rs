//! `POST /sandboxes/{id}/connect`: a sandbox that runs lives longer, and one that is paused goes on.

use cofferdam_contracts::error::ErrorCode;
use cofferdam_contracts::id::LiveId;
use cofferdam_flows::Error;
use cofferdam_live::{
    CheckAlive, ExtendSandbox, FindAnyGuest, FindGuest, Guest, ResumeOptions, ResumeSandbox,
};

use crate::call::{Call, Outcome};
use crate::sandbox::answers::Sandbox;
use crate::sandbox::bodies::TimeoutRequest;
use crate::sandbox::refusals::{found, missing};
use crate::{answer, body};

const CONNECT_S: u64 = 300;

pub(crate) async fn connect(call: Call) -> Outcome {
    let id = &call.param("id");
    let live = LiveId::parse(id).map_err(|_| missing(id))?;
    let Call { services, who, domain, body, .. } = call;
    let asked: TimeoutRequest = body::body(body).await?;
    let lives = &services.live;
    let seconds = asked.timeout.unwrap_or(CONNECT_S);
    // `None`: it is not running any more.
    let extended = async |guest: Guest| {
        if guest.is_revoked() {
            let why = "the key that its tokens were made for is revoked: pause it and connect again for new ones, or kill it";
            return Err(answer::error(409, why));
        }
        if asked.auto_pause == Some(true) {
            let why = "autoPause: a sandbox that runs keeps what it was created with";
            return Err(answer::error(400, why));
        }
        let (who, id_of) = (who.clone(), guest.facts.id.clone());
        match lives.ask(ExtendSandbox { who, id: id_of, seconds, longer: true }).await {
            Ok(()) => Ok(Some(answer::json_of(200, &Sandbox::of(&guest.facts, &domain)))),
            Err(Error::Refused(refusal)) if refusal.code == ErrorCode::NotFound => Ok(None),
            Err(error) => Err(found(id, error)),
        }
    };
    // The one of this process need not be looked for on record, nor one that is paused more often than once.
    let here = lives.ask(FindAnyGuest { id: live.clone() }).await.map_err(answer::refused)?;
    if let Some(guest) = here.filter(|guest| guest.facts.tenant == who.tenant)
        && guest.ask(CheckAlive).await.unwrap_or(false)
        && let Some(response) = extended(guest).await?
    {
        return Ok(response);
    }
    let options = ResumeOptions::of(Some(seconds), asked.auto_pause, asked.memory);
    let resume = ResumeSandbox { who: who.clone(), id: live.clone(), options };
    if let Some(guest) = lives.ask(resume).await.map_err(|error| found(id, error))? {
        return Ok(answer::json_of(201, &Sandbox::of(&guest.facts, &domain)));
    }
    let find = FindGuest { who: who.clone(), id: live };
    let guest = lives.ask(find).await.map_err(|error| found(id, error))?;
    extended(guest).await?.ok_or_else(|| missing(id))
}
