//! Waiting for a sandbox that this process asked for, and for the room that it needs.

use std::sync::Arc;
use std::time::Duration;

use cofferdam_ambient::clock::Stopwatch;
use cofferdam_contracts::error::ErrorCode;
use cofferdam_contracts::id::{LiveId, RunId};
use cofferdam_contracts::live::{LiveState, LiveView};
use cofferdam_flows::{Error, Result};
use cofferdam_ledger::keys::Principal;

use crate::handle::LiveHandle;
use crate::kill::Kill;
use crate::live::Live;
use crate::patience::{CREATE_PATIENCE, LOOK, moved};
use crate::refusal::refuse;

/// How long a creation waits for room that only the end of long-lived sandboxes makes: long enough for one that is being wiped
/// or paused, and short enough for clients, which send a refused request up to three times again within their own patience.
const HELD_PATIENCE: Duration = Duration::from_secs(5);
/// What is said of a creation that no worker of this process has taken, or that waits for no memory.
const UNPLACED: &str =
    "tasks and creations hold all places, or its start takes long; kill some, or try again";

/// The start of a sandbox that this process asked for.
pub(crate) struct Start<'a> {
    pub live: &'a Live,
    pub who: &'a Principal,
    pub id: &'a LiveId,
    /// The run that is to hold it.
    pub run: &'a RunId,
}

impl Start<'_> {
    /// Waits for the start of a sandbox that this process asked for.
    pub(crate) async fn up(&self) -> Result<Arc<LiveHandle>> {
        let since = Stopwatch::start();
        let waited = tokio::time::timeout(CREATE_PATIENCE, self.begun()).await;
        if let Ok(begun) = waited
            && let Some(held) = begun?
        {
            return Ok(held);
        }
        let waits_for = match self.quota().await? {
            Some(quota) => Some(quota),
            None => {
                self.live.0.registry.maker().and_then(|maker| maker.waits_for(&self.who.tenant))
            }
        };
        let why = format!(
            "no room for the sandbox within {} s: {}",
            since.elapsed().as_secs().max(HELD_PATIENCE.as_secs()),
            waits_for.as_deref().unwrap_or(UNPLACED)
        );
        // Before its end, which would say less.
        self.live.0.ledger.builds().failed_unmade(self.id, &why).await?;
        Kill { live: self.live, who: self.who, id: self.id }.cancel().await?;
        // Whoever repeats the request at once is to make a new one: its key is free with the end of this one.
        if !matches!(tokio::time::timeout(HELD_PATIENCE, self.over()).await, Ok(Ok(()))) {
            tracing::warn!(sandbox = %self.id, "a creation without room is canceled and has not ended yet");
        }
        Err(refuse(ErrorCode::Unavailable, why))
    }

    /// The quota of its tenant that keeps it back, in words.
    async fn quota(&self) -> Result<Option<String>> {
        let words = self.live.0.ledger.live().waits_for(self.run).await?;
        let is_quota = |words: &String| {
            let what = words.split(':').next().unwrap_or_default();
            ["cpu", "disk", "starts"].contains(&what)
        };
        Ok(words.filter(is_quota).map(|words| {
            format!(
                "it waits for its tenant's quota of {words}; kill or pause some of your sandboxes, or let the host's admin \
                 raise the quota"
            )
        }))
    }

    /// Until a canceled start has ended: nothing is left of it, or it is paused as before.
    async fn over(&self) -> Result<()> {
        let mut wakes = self.live.0.wakes.subscribe();
        loop {
            let view = self.live.view(self.who, self.id).await?;
            let is_over = view.ended_at.is_some() || view.state == LiveState::Paused;
            // Somebody may have resumed it meanwhile.
            if is_over || view.run_id != *self.run {
                return Ok(());
            }
            moved(&mut wakes, self.run).await;
        }
    }

    /// The sandbox once it is up; `None`: it waits for what may not come for days.
    async fn begun(&self) -> Result<Option<Arc<LiveHandle>>> {
        let mut wakes = self.live.0.wakes.subscribe();
        let (since, mut unseen) = (Stopwatch::start(), None::<Stopwatch>);
        loop {
            let changed = self.live.0.registry.changed();
            if let Some(held) = self.live.0.registry.find(self.id) {
                return Ok(Some(held));
            }
            tokio::select! {
                () = changed => continue,
                () = moved(&mut wakes, self.run) => {}
            }
            let view = self.live.view(self.who, self.id).await?;
            match view.state {
                LiveState::Ended => return Err(self.unmade(&view).await?),
                LiveState::Paused => return Err(self.stays(&view.run_id).await?),
                // On record first, and shown a moment later.
                LiveState::Running
                    if self.live.0.registry.find(self.id).is_none()
                        && unseen.get_or_insert_with(Stopwatch::start).elapsed() >= LOOK =>
                {
                    self.live.not_elsewhere(self.id).await?;
                }
                LiveState::Starting
                    if since.elapsed() >= HELD_PATIENCE && self.is_room_held().await? =>
                {
                    return Ok(None);
                }
                _ => {}
            }
        }
    }

    /// Whether a life waits for room, and only the end of long-lived sandboxes makes some for its tenant.
    async fn is_room_held(&self) -> Result<bool> {
        let is_held = self
            .live
            .0
            .registry
            .maker()
            .is_some_and(|maker| maker.is_held_by_lives(&self.who.tenant));
        Ok(is_held && self.live.0.ledger.live().waits_for(self.run).await?.is_some())
    }

    /// Why a sandbox that was to go on is paused still.
    async fn stays(&self, run: &RunId) -> Result<Error> {
        let why = self.live.0.ledger.live().cause(run).await?;
        let why = why.unwrap_or_else(|| "its run ended before it began".to_owned());
        Ok(refuse(ErrorCode::StateConflict, format!("the sandbox stays paused: {why}")))
    }

    /// Why there is none, in the words of its task.
    async fn unmade(&self, view: &LiveView) -> Result<Error> {
        let why = view.end_reason.as_deref().unwrap_or("it ended at once");
        let code = match self.live.0.ledger.live().failed_to_begin(&view.run_id).await? {
            true => ErrorCode::Unavailable,
            false => ErrorCode::PolicyViolation,
        };
        Ok(refuse(code, format!("the sandbox was not made: {why}")))
    }
}
