//! A paused sandbox that the first request to it resumes.
//!
//! ```text
//! request, no running sandbox -> row -> token fits its hash -> one resume, for which all requests wait -> LiveHandle
//!                                   \--> it does not: nothing is woken, and nothing is told
//! ```

use std::sync::Arc;

use cofferdam_ambient::clock;
use cofferdam_contracts::canonical::digest_bytes;
use cofferdam_contracts::error::{ErrorCode, Refusal};
use cofferdam_contracts::id::LiveId;
use cofferdam_flows::Result;
use cofferdam_ledger::keys::Principal;
use cofferdam_ledger::live::{ResumableSandbox, ResumeState};

use crate::guest::handle::Guest;
use crate::handle::LiveHandle;
use crate::live::Live;
use crate::message::Message;
use crate::patience::{CREATE_PATIENCE, LOOK};
use crate::refusal::{conflict, refuse};
use crate::resume::ResumeOptions;
use crate::snapshot::eraser::Eraser;
use serde::{Deserialize, Serialize};

/// How often a sandbox that runs on record is looked for in this process: it is shown there some ms later.
const LOOKS: u32 = 2;

/// A request at a sandbox's door, with the token that it carries.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum ResumeRequest {
    /// To its agent.
    Envd(Option<String>),
    /// To one of its ports.
    Port(Option<String>),
}

/// Whether a request would be let in to the running sandbox. Pure.
fn opens(door: &ResumableSandbox, knock: &ResumeRequest) -> bool {
    // Hashes: what their comparison tells of them is of no use.
    let fits = |token: &str, hash: &str| digest_bytes(token.as_bytes()).as_str() == hash;
    match (knock, &door.traffic) {
        (ResumeRequest::Envd(token), _) => {
            token.as_ref().is_some_and(|token| fits(token, &door.envd))
        }
        (ResumeRequest::Port(_), None) => true,
        (ResumeRequest::Port(token), Some(hash)) => {
            token.as_ref().is_some_and(|token| fits(token, hash))
        }
    }
}

/// The sandbox that a request resumes, once it runs; many requests at once resume it once. `None`: it wakes nothing, since no such
/// sandbox is paused, or since it would not be let in.
#[derive(Debug, Serialize, Deserialize)]
pub struct WakeSandbox {
    /// Sandbox that a request names before its token is checked.
    pub id: LiveId,
    /// The request, by what it carries.
    pub knock: ResumeRequest,
}

impl Message for WakeSandbox {
    type Reply = Option<Guest>;

    async fn answer(self, live: &Live) -> Result<Self::Reply> {
        let held = live.woken(&self.id, &self.knock).await?;
        Ok(held.map(|held| Guest::of(live, &held)))
    }
}

impl Live {
    /// The sandbox that this request resumes, once it runs; many requests at once resume it once. `None`: it wakes nothing,
    /// since no such sandbox is paused, or since it would not be let in.
    ///
    /// # Errors
    /// The sandbox stays paused, or does not run within [`CREATE_PATIENCE`].
    async fn woken(&self, id: &LiveId, knock: &ResumeRequest) -> Result<Option<Arc<LiveHandle>>> {
        let Some(door) = self.0.ledger.live().door(id).await? else { return Ok(None) };
        if !opens(&door, knock) {
            return Ok(None);
        }
        if door.state == ResumeState::Running && !self.0.registry.is_waking(id) {
            // It may have been resumed since this request looked for it.
            return Ok(self.0.registry.find(id).filter(|held| held.goes_on()));
        }
        if door.is_revoked {
            let why = "the sandbox stays paused: the key that created it is revoked; resume it with another key";
            return Err(refuse(ErrorCode::StateConflict, why));
        }
        let (mut woken, mine) = self.0.registry.waking(id);
        if let Some(waking) = mine {
            let (live, id) = (self.clone(), id.clone());
            let who = Principal { key_id: door.key_id, tenant: door.tenant, roles: Vec::new() };
            // It goes on where this request's caller hangs up: others wait for it.
            tokio::spawn(async move {
                let outcome = live.wake(&who, &id).await;
                waking.tell(outcome.map_err(cofferdam_flows::Error::refusal));
                Eraser::of(&live).clean_up_soon();
            });
        }
        let outcome = tokio::time::timeout(CREATE_PATIENCE, woken.wait_for(Option::is_some)).await;
        match outcome {
            Ok(Ok(outcome)) => match outcome.as_ref() {
                Some(Ok(held)) => Ok(Some(Arc::clone(held))),
                Some(Err(refusal)) => Err(refusal.clone().into()),
                None => Err(still()),
            },
            _ => Err(still()),
        }
    }

    /// Resumes it, unless another caller does.
    async fn wake(&self, who: &Principal, id: &LiveId) -> Result<Arc<LiveHandle>> {
        let mut looks = 0;
        let ready = tokio::time::timeout(CREATE_PATIENCE, async {
            loop {
                let changed = self.0.registry.changed();
                if let Some(held) = self.0.registry.find(id).filter(|held| held.goes_on()) {
                    return Ok(Some(held));
                }
                let door = self.0.ledger.live().door(id).await?;
                match door.map(|door| door.state) {
                    None => return Err(Refusal::not_found("paused sandbox").into()),
                    Some(ResumeState::Paused) => return Ok(None),
                    Some(ResumeState::Running) if looks >= LOOKS => {
                        return Err(self.not_here_reason(id).await?);
                    }
                    Some(ResumeState::Running) => looks += 1,
                    Some(ResumeState::Starting) => {}
                }
                tokio::select! {
                    () = changed => {}
                    () = clock::sleep(LOOK) => {}
                }
            }
        });
        match ready.await.unwrap_or_else(|_| Err(still()))? {
            Some(held) => Ok(held),
            None => {
                let options =
                    ResumeOptions { by_traffic: true, ..ResumeOptions::of(None, None, None) };
                let resumed = self.resume_paused(who, id, options).await?;
                resumed.ok_or_else(|| conflict("the sandbox is not paused"))
            }
        }
    }
}

fn still() -> cofferdam_flows::Error {
    let why = "the sandbox is still being resumed; send the request again";
    refuse(ErrorCode::Unavailable, why)
}

#[cfg(test)]
mod tests {
    use super::*;
    use cofferdam_contracts::id::TenantId;

    #[test]
    fn only_who_would_be_let_in_wakes_a_sandbox() {
        let hash = |token: &str| digest_bytes(token.as_bytes()).as_str().to_owned();
        let open = ResumableSandbox {
            tenant: TenantId::parse("ann").unwrap(),
            key_id: "k".to_owned(),
            is_revoked: false,
            envd: hash("envd"),
            traffic: None,
            state: ResumeState::Paused,
        };
        let private = ResumableSandbox { traffic: Some(hash("traffic")), ..open.clone() };
        for door in [&open, &private] {
            assert!(opens(door, &ResumeRequest::Envd(Some("envd".to_owned()))));
            for wrong in [None, Some(""), Some("traffic"), Some(door.envd.as_str())] {
                assert!(!opens(door, &ResumeRequest::Envd(wrong.map(str::to_owned))), "{wrong:?}");
            }
        }
        assert!(opens(&open, &ResumeRequest::Port(None)));
        assert!(opens(&private, &ResumeRequest::Port(Some("traffic".to_owned()))));
        for wrong in [None, Some(""), Some("envd")] {
            assert!(!opens(&private, &ResumeRequest::Port(wrong.map(str::to_owned))), "{wrong:?}");
        }
    }
}
