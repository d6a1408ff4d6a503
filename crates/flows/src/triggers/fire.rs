//! The clock of schedules: what is due is taken down, and what waits is started. Every worker does both, and SQL lets one of them.

use std::time::Duration;

use cofferdam_ambient::clock::{now_ms, sleep};
use cofferdam_contracts::error::{ErrorCode, Refusal};
use cofferdam_contracts::key::Role;
use cofferdam_contracts::run::{RecipeRunRequest, RunOpts};
use cofferdam_contracts::schedule::{Overlap, ScheduleSpec, Timetable};
use cofferdam_contracts::trigger::{FiringState, SkipReason};
use cofferdam_ledger::failpoint::fail_point;
use cofferdam_ledger::firings::{FireOutcome, FiringCause, PendingFiring};
use cofferdam_ledger::keys::Principal;
use cofferdam_ledger::triggers::{Trigger, TriggerSpec};
use serde_json::{Map, Value};

use super::{Triggers, look};
use crate::error::{Error, Result};

/// How often a worker looks where no instant is nearer: a schedule that was just added is seen within it.
const LOOK_MS: i64 = 1_000;
/// The shortest pause, should firings wait for a run that goes on.
const LEAST_MS: i64 = 50;
/// For so long a firing is tried again whose run nothing refuses but the state of the host or the database.
const MAX_AGE_MS: i64 = 3_600_000;
/// Characters of a refusal that are kept.
const MAX_DETAIL: usize = 1_000;

impl Triggers {
    /// Fires what is due, for as long as this worker lives.
    pub(crate) async fn run(self) {
        loop {
            let pause = match self.turn().await {
                Ok(pause) => pause,
                Err(error) => {
                    tracing::warn!(%error, "schedules cannot be looked at; again in a second");
                    LOOK_MS
                }
            };
            sleep(Duration::from_millis(u64::try_from(pause).unwrap_or(0))).await;
        }
    }

    /// One look; until the next one, in ms.
    async fn turn(&self) -> Result<i64> {
        let found = self.ledger.triggers().due().await?;
        let mut pause = found.next_in_ms.unwrap_or(LOOK_MS).clamp(LEAST_MS, LOOK_MS);
        if !found.due.is_empty() || !found.pending.is_empty() {
            pause = LEAST_MS;
        }
        // One that cannot be read keeps no other from firing.
        for trigger in &found.due {
            if let Err(error) = self.take_down(trigger).await {
                tracing::warn!(%error, schedule = %trigger.name, "instants of a schedule cannot be taken down");
                pause = LOOK_MS;
            }
        }
        for firing in &found.pending {
            if !self.fire(firing).await? {
                pause = LOOK_MS;
            }
        }
        Ok(pause)
    }

    /// Takes down the instants of a schedule that have come.
    async fn take_down(&self, trigger: &Trigger) -> Result<()> {
        let (Some(from_ms), spec) = (trigger.next_ms, spec_of(trigger)?) else { return Ok(()) };
        let table = Timetable::new(spec).map_err(Error::corrupt("schedule"))?;
        let waiting = self.ledger.triggers().waiting(&trigger.id).await?;
        // Years of seconds take some ms of a processor.
        let (id, spec) = (trigger.id.clone(), spec.clone());
        let look = move || look::look(&id, &spec, &table, from_ms, now_ms(), waiting);
        let look = tokio::task::spawn_blocking(look).await;
        let look = look.map_err(|error| Error::corrupt("schedule")(error.to_string()))?;
        // This process's clock may be behind the database's for a moment.
        if look.firings.is_empty() {
            return Ok(());
        }
        let skipped = look.firings.iter().filter(|firing| firing.skip.is_some()).count();
        if self.ledger.triggers().record(&trigger.id, from_ms, &look.firings, look.next).await? {
            fail_point("firing.recorded");
            self.ledger.triggers().fold(&trigger.id).await?;
            if skipped > 0 {
                tracing::warn!(schedule = %trigger.name, tenant = %trigger.tenant, skipped, "instants of a schedule were missed");
            }
        }
        Ok(())
    }

    /// Starts the run of a firing, or settles it with the reason why it has none. `false`: it has to be tried again.
    async fn fire(&self, firing: &PendingFiring) -> Result<bool> {
        let trigger = &firing.trigger;
        let spec = spec_of(trigger)?;
        if look::is_missed(spec, firing.age_ms) {
            let detail = "it was taken down in time, and its run did not start within 30 s";
            let reason = SkipReason::Missed.as_str();
            return self.settle(firing, FiringState::Skipped, reason, Some(detail)).await;
        }
        let cause = FiringCause::Instant { trigger: &trigger.id, event: &firing.event };
        match self.start(trigger, spec.inputs.clone(), cause).await {
            Ok(FireOutcome::Overlaps) if spec.overlap == Overlap::Skip => {
                self.settle(firing, FiringState::Skipped, SkipReason::Overlap.as_str(), None).await
            }
            // The one before it ends sooner or later.
            Ok(FireOutcome::Overlaps) => Ok(false),
            Ok(_) => Ok(true),
            Err(error) => {
                let name = &trigger.name;
                tracing::warn!(%error, schedule = %name, instant = firing.event, "a firing has no run");
                let refusal = error.refusal();
                if refusal.code == ErrorCode::Unavailable && firing.age_ms < MAX_AGE_MS {
                    return Ok(false);
                }
                let detail: String = refusal.message.chars().take(MAX_DETAIL).collect();
                self.settle(firing, FiringState::Refused, refusal.code.as_str(), Some(&detail))
                    .await
            }
        }
    }

    async fn settle(
        &self,
        firing: &PendingFiring,
        state: FiringState,
        reason: &str,
        detail: Option<&str>,
    ) -> Result<bool> {
        let (trigger, event) = (&firing.trigger.id, &firing.event);
        self.ledger.triggers().settle(trigger, event, state, reason, detail).await?;
        Ok(true)
    }

    /// Starts a run in a trigger's name, with the rights that its key has now.
    pub(super) async fn start(
        &self,
        trigger: &Trigger,
        form_data: Map<String, Value>,
        cause: FiringCause<'_>,
    ) -> Result<FireOutcome> {
        let who = self.ledger.keys().by_id(&trigger.key_id).await?;
        let who = may(who, trigger)?;
        let request = RecipeRunRequest {
            recipe_ref: trigger.recipe.clone(),
            recipe_hash: Some(trigger.recipe_hash.clone()),
            form_data,
            opts: RunOpts::default(),
        };
        self.runs.submit_fired(&who, &request, cause).await
    }
}

fn spec_of(trigger: &Trigger) -> Result<&ScheduleSpec> {
    match &trigger.spec {
        TriggerSpec::Schedule(spec) => Ok(spec),
        TriggerSpec::Hook(_) => Err(Error::corrupt("schedule")("it is a hook")),
    }
}

/// The key of a trigger, if it may still start its runs. Pure.
fn may(who: Option<Principal>, trigger: &Trigger) -> Result<Principal, Refusal> {
    let refused =
        |why: &str| Refusal::new(ErrorCode::Forbidden, format!("key {}: {why}", trigger.key_id));
    match who {
        None => Err(refused("it is revoked; add the trigger again with another key")),
        Some(who) if who.tenant != trigger.tenant || !who.has(Role::Submitter) => {
            Err(refused("it may not start runs of this tenant"))
        }
        Some(who) => Ok(who),
    }
}
