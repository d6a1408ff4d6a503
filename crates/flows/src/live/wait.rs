//! Waiting for a sandbox that this process asked for, and for the room that it needs.

use std::sync::Arc;
use std::time::Duration;

use cofferdam_ambient::clock::Stopwatch;
use cofferdam_contracts::error::ErrorCode;
use cofferdam_contracts::id::{LiveId, RunId, TenantId};
use cofferdam_contracts::live::{LiveState, LiveView};
use cofferdam_ledger::keys::Principal;

use super::registry::Held;
use super::{CREATE_PATIENCE, LOOK, moved, refuse};
use crate::Flows;
use crate::error::{Error, Result};

/// How long a creation waits for room that only the end of long-lived sandboxes makes: long enough for one that is being wiped
/// or paused, and short enough for clients, which send a refused request up to three times again within their own patience.
const HELD_PATIENCE: Duration = Duration::from_secs(5);
/// What is said of a creation that no worker of this process has taken, or that waits for no memory.
const UNPLACED: &str =
    "tasks and creations hold all places, or its start takes long; kill some, or try again";

impl Flows {
    /// Waits for the start of a sandbox that this process asked for.
    pub(super) async fn live_wait(
        &self,
        who: &Principal,
        id: &LiveId,
        run: &RunId,
    ) -> Result<Arc<Held>> {
        let since = Stopwatch::start();
        let waited = tokio::time::timeout(CREATE_PATIENCE, self.live_begun(who, id, run)).await;
        if let Ok(begun) = waited
            && let Some(held) = begun?
        {
            return Ok(held);
        }
        let waits_for = self.live.maker().and_then(|maker| maker.waits_for(&who.tenant));
        let why = format!(
            "no room for the sandbox within {} s: {}",
            since.elapsed().as_secs().max(HELD_PATIENCE.as_secs()),
            waits_for.as_deref().unwrap_or(UNPLACED)
        );
        // Before its end, which would say less.
        self.ledger.builds().failed_unmade(id, &why).await?;
        self.live_cancel(who, id).await?;
        Err(refuse(ErrorCode::Unavailable, why))
    }

    /// The sandbox once it is up; `None`: it waits for what may not come for days.
    async fn live_begun(
        &self,
        who: &Principal,
        id: &LiveId,
        run: &RunId,
    ) -> Result<Option<Arc<Held>>> {
        let mut wakes = self.wakes.subscribe();
        let (since, mut unseen) = (Stopwatch::start(), None::<Stopwatch>);
        loop {
            let changed = self.live.changed();
            if let Some(held) = self.live.find(id) {
                return Ok(Some(held));
            }
            tokio::select! {
                () = changed => continue,
                () = moved(&mut wakes, run) => {}
            }
            let view = self.live_view(who, id).await?;
            match view.state {
                LiveState::Ended => return Err(self.live_unmade(&view).await?),
                LiveState::Paused => return Err(self.live_stays(&view.run_id).await?),
                // On record first, and shown a moment later.
                LiveState::Running
                    if self.live.find(id).is_none()
                        && unseen.get_or_insert_with(Stopwatch::start).elapsed() >= LOOK =>
                {
                    self.live_not_elsewhere(id).await?;
                }
                LiveState::Starting
                    if since.elapsed() >= HELD_PATIENCE
                        && self.is_room_held(&who.tenant, run).await? =>
                {
                    return Ok(None);
                }
                _ => {}
            }
        }
    }

    /// Whether a life waits for room, and only the end of long-lived sandboxes makes some for its tenant.
    async fn is_room_held(&self, tenant: &TenantId, run: &RunId) -> Result<bool> {
        let is_held = self.live.maker().is_some_and(|maker| maker.is_held_by_lives(tenant));
        Ok(is_held && self.ledger.live().is_waiting(run).await?)
    }

    /// Why a sandbox that was to go on is paused still.
    async fn live_stays(&self, run: &RunId) -> Result<Error> {
        let why = self.ledger.live().cause(run).await?;
        let why = why.unwrap_or_else(|| "its run ended before it began".to_owned());
        Ok(refuse(ErrorCode::StateConflict, format!("the sandbox stays paused: {why}")))
    }

    /// Why there is none, in the words of its task.
    async fn live_unmade(&self, view: &LiveView) -> Result<Error> {
        let why = view.end_reason.as_deref().unwrap_or("it ended at once");
        let code = match self.ledger.live().failed_to_begin(&view.run_id).await? {
            true => ErrorCode::Unavailable,
            false => ErrorCode::PolicyViolation,
        };
        Ok(refuse(code, format!("the sandbox was not made: {why}")))
    }
}
