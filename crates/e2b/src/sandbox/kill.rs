//! The end of a sandbox.

use cofferdam_contracts::id::LiveId;
use cofferdam_live::KillSandbox;

use crate::answer;
use crate::call::{Call, Outcome};
use crate::sandbox::refusals::{found, missing};

pub(crate) async fn kill(call: Call) -> Outcome {
    let id = &call.param("id");
    let live = LiveId::parse(id).map_err(|_| missing(id))?;
    let killed = call.services.live.ask(KillSandbox { who: call.who, id: live }).await;
    call.services.clean_up().await;
    match killed {
        Ok(true) => Ok(answer::empty(204)),
        Ok(false) => Err(missing(id)),
        Err(error) => Err(found(id, error)),
    }
}
