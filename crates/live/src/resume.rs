//! The next life of a paused sandbox, under its id.
//!
//! ```text
//! paused, its last life wiped -> its layer, where that is here, or its sealed files -> launched
//! ```

use std::collections::BTreeMap;
use std::sync::Arc;

use cofferdam_ambient::clock::Stopwatch;
use cofferdam_contracts::error::Refusal;
use cofferdam_contracts::id::{LiveId, SnapshotId};
use cofferdam_contracts::live::{DEFAULT_LIVE_S, LiveRequest, LiveState};
use cofferdam_flows::Result;
use cofferdam_ledger::failpoint::fail_point;
use cofferdam_ledger::keys::Principal;
use cofferdam_ledger::live::PauseSnapshot;

use crate::background::detached;
use crate::guest::handle::Guest;
use crate::handle::LiveHandle;
use crate::launch::LifeStart;
use crate::layer::loan::LoanAnswer;
use crate::live::Live;
use crate::message::Message;
use crate::patience::{CREATE_PATIENCE, KILL_PATIENCE, moved};
use crate::refusal::conflict;
use crate::snapshot::eraser::Eraser;
use crate::snapshot::resume_spec::ResumeSpec;
use crate::snapshot::snapshots::Snapshots;
use crate::spec::{Source, Spec};
use crate::template::templates::Templates;
use crate::tokens::Tokens;
use serde::{Deserialize, Serialize};

/// How a paused sandbox is to go on.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct ResumeOptions {
    /// Time to live in seconds, as its caller says.
    pub(crate) timeout_s: Option<u64>,
    /// Whether the end of its time pauses it; `None`: as before.
    pub(crate) pauses: Option<bool>,
    /// A request to it resumes it.
    pub(crate) by_traffic: bool,
    /// Whether its processes go on, where they were kept.
    pub(crate) memory: bool,
}

impl ResumeOptions {
    /// What a caller asks for; `memory`: whether its processes are to go on, where they were kept, as they do by default.
    #[must_use]
    pub fn of(timeout_s: Option<u64>, pauses: Option<bool>, memory: Option<bool>) -> Self {
        Self { timeout_s, pauses, by_traffic: false, memory: memory != Some(false) }
    }

    /// Time to live in seconds. A request has no word in it: as long as before, and not less than the default. Pure.
    fn lives_s(&self, before: Option<u64>) -> u64 {
        match self.by_traffic {
            true => before.unwrap_or(DEFAULT_LIVE_S).max(DEFAULT_LIVE_S),
            false => self.timeout_s.unwrap_or(DEFAULT_LIVE_S),
        }
    }
}

/// Resumes a paused sandbox under its id and waits until it answers. `None`: it is not paused.
#[derive(Debug, Serialize, Deserialize)]
pub struct ResumeSandbox {
    /// Caller; the sandbox must belong to the tenant of this key.
    pub who: Principal,
    /// Paused sandbox, which keeps this name in its next life.
    pub id: LiveId,
    /// How it is to go on.
    pub options: ResumeOptions,
}

impl Message for ResumeSandbox {
    type Reply = Option<Guest>;

    async fn answer(self, live: &Live) -> Result<Self::Reply> {
        let held = live.resume(&self.who, &self.id, self.options).await?;
        Ok(held.map(|held| Guest::of(live, &held)))
    }
}

impl Live {
    /// Resumes a paused sandbox under its id and waits until it answers. `None`: it is not paused.
    ///
    /// # Errors
    /// There is none of this id, its file is damaged or elsewhere, or there is no room: then it stays paused.
    async fn resume(
        &self,
        who: &Principal,
        id: &LiveId,
        options: ResumeOptions,
    ) -> Result<Option<Arc<LiveHandle>>> {
        let (live, asker, id) = (self.clone(), who.clone(), id.clone());
        let held = detached(async move { live.resume_paused(&asker, &id, options).await }).await;
        Eraser::of(self).clean_up_soon();
        held
    }

    /// Resumes it, in the caller's own task.
    pub(crate) async fn resume_paused(
        &self,
        who: &Principal,
        id: &LiveId,
        options: ResumeOptions,
    ) -> Result<Option<Arc<LiveHandle>>> {
        Resume { live: self, who, id, options }.done().await
    }
}

struct Resume<'a> {
    live: &'a Live,
    who: &'a Principal,
    id: &'a LiveId,
    options: ResumeOptions,
}

impl Resume<'_> {
    async fn done(&self) -> Result<Option<Arc<LiveHandle>>> {
        let (live, who, id) = (self.live, self.who, self.id);
        let Some(snapshot) = self.rested().await? else {
            return match live.view(who, id).await?.state {
                LiveState::Ended => Err(Refusal::not_found("paused sandbox").into()),
                _ => Ok(None),
            };
        };
        let by_traffic = self.options.by_traffic;
        let life = LifeStart::Next { snapshot: &snapshot, by_traffic };
        live.launch(who, id, self.spec(&snapshot), life).await.map(Some)
    }

    /// What a sandbox is paused into, as soon as its last life is over. One whose wipe takes longer than a wipe may is not waited
    /// for: its resume is refused.
    async fn rested(&self) -> Result<Option<SnapshotId>> {
        let (mut wakes, since) = (self.live.0.wakes.subscribe(), Stopwatch::start());
        loop {
            let paused = self.live.0.ledger.live().paused_into(&self.who.tenant, self.id).await?;
            match paused {
                Some(PauseSnapshot { settles: Some(run), .. })
                    if since.elapsed() < KILL_PATIENCE =>
                {
                    moved(&mut wakes, &run).await;
                }
                paused => return Ok(paused.map(|paused| paused.snapshot)),
            }
        }
    }

    /// What its next life is launched from.
    async fn spec(&self, snapshot: &SnapshotId) -> Result<Spec> {
        let options = self.options;
        let (resume_spec, source) = match self.lent(snapshot).await? {
            Some(lent) => lent,
            None => {
                let (resume_spec, files) =
                    Snapshots::of(self.live).open(&self.who.tenant, snapshot).await?;
                let files = if options.memory { files } else { files.files_alone() };
                (resume_spec, Source::Snapshot(files))
            }
        };
        fail_point("resume.opened");
        let template = Templates::of(self.live).resolve(&resume_spec)?;
        let ResumeSpec { request: asked, tokens, .. } = resume_spec;
        let request = LiveRequest {
            timeout_s: Some(options.lives_s(asked.timeout_s)),
            pause_on_timeout: options.pauses.unwrap_or(asked.pause_on_timeout),
            ..asked
        };
        let tokens = self.tokens(tokens).await?;
        Ok(Spec { request, template, inherited: BTreeMap::new(), source, tokens })
    }

    /// The tokens of a next life that has those of the last one, unless their key was revoked since.
    async fn tokens(&self, kept: Option<Tokens>) -> Result<Option<Tokens>> {
        let Some(mut tokens) = kept else { return Ok(None) };
        if tokens.key_id.is_empty() {
            let Some(door) = self.live.0.ledger.live().door(self.id).await? else {
                return Ok(None);
            };
            tokens.key_id = door.key_id;
        }
        let is_revoked = self.live.0.ledger.keys().is_revoked(&tokens.key_id).await?;
        Ok(Some(tokens).filter(|_| !is_revoked))
    }

    /// The layer of a pause, unsealed or retained, for the next life of its sandbox, with what was asked for; `None`: use the file.
    async fn lent(&self, id: &SnapshotId) -> Result<Option<(ResumeSpec, Source)>> {
        let Some(resume_spec) = self.live.0.layers.resume_spec(id) else { return Ok(None) };
        Snapshots::of(self.live).fits(&resume_spec)?;
        // What a template starts changes files before its life is on record; a life that is not is to leave the sealed ones.
        if Templates::of(self.live).resolve(&resume_spec)?.program.is_some() {
            let sealed = tokio::time::timeout(CREATE_PATIENCE, self.live.0.layers.sealed(id));
            if !matches!(sealed.await, Ok(Some(true))) {
                return Ok(None);
            }
        }
        match self.live.0.layers.borrow(id).await {
            LoanAnswer::Lent(loan, layer) => {
                Ok(Some((ResumeSpec::clone(&resume_spec), Source::Layer(layer, loan))))
            }
            LoanAnswer::Busy => Err(conflict("the sandbox is being resumed")),
            LoanAnswer::File => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn traffic_gives_the_time_that_was_asked_for_and_never_less_than_the_default() {
        let by = |by_traffic, timeout_s| ResumeOptions {
            by_traffic,
            ..ResumeOptions::of(timeout_s, None, None)
        };
        for (before, lives) in [(None, 300), (Some(2), 300), (Some(3_600), 3_600)] {
            assert_eq!(by(true, None).lives_s(before), lives);
        }
        assert_eq!(by(false, Some(2)).lives_s(Some(3_600)), 2);
        assert_eq!(by(false, None).lives_s(Some(3_600)), 300);
    }
}
