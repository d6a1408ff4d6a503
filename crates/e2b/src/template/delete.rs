//! The end of a template or a snapshot.

use cofferdam_contracts::error::ErrorCode;
use cofferdam_contracts::id::SnapshotId;
use cofferdam_flows::Error;
use cofferdam_live::{DeleteSnapshot, DeleteTemplate};

use crate::answer;
use crate::call::{Call, Outcome};
use crate::template::names;

/// Snapshots and templates that its tenant built are the caller's to delete; others are the host's.
pub(crate) async fn delete(call: Call) -> Outcome {
    let id = &call.param("id");
    let gone = || names::missing(id);
    let name = id.split(':').next().unwrap_or_default();
    let (flows, lives) = (&call.services.flows, &call.services.live);
    if let Some((template, _)) = names::built(flows, &call.who, name).await? {
        let deleted = lives.ask(DeleteTemplate { who: call.who, template }).await;
        return deleted.map(|()| answer::empty(204)).map_err(answer::refused);
    }
    let Ok(snapshot) = SnapshotId::parse(name) else {
        let why = "not supported: templates are the host's; see `cofferdam template rm`";
        let is_known = names::is_known(lives, name).await;
        return Err(match is_known.map_err(answer::refused)? {
            true => answer::error(400, why),
            false => gone(),
        });
    };
    let deleted = lives.ask(DeleteSnapshot { who: call.who, id: snapshot }).await;
    match deleted {
        Ok(()) => Ok(answer::empty(204)),
        Err(Error::Refused(refusal)) if refusal.code == ErrorCode::NotFound => Err(gone()),
        Err(error) => Err(answer::refused(error)),
    }
}
