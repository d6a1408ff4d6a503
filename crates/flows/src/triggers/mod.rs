//! Schedules and hooks: added, paused, resumed and removed. What fires them is `fire` and `deliver`.
//!
//! ```text
//! every second, each worker: due schedules --look (pure)--> firings on record --fire--> runs
//! POST /api/hooks/NAME --signature (pure)--> the delivery's run, on record with it
//! ```
//! **A firing has the rights of the key that added its trigger, as they are then.**

mod deliver;
mod fire;
mod look;
mod signature;

pub use signature::{DELIVERY_HEADERS, DeliveryHeaders};

use std::sync::Arc;

use cofferdam_ambient::clock::now_ms;
use cofferdam_ambient::random::secret_hex;
use cofferdam_contracts::config::{ConfigKey, value_of};
use cofferdam_contracts::error::{ErrorCode, Refusal, Violation};
use cofferdam_contracts::id::{Digest, TriggerId, TriggerName};
use cofferdam_contracts::instant::Instant;
use cofferdam_contracts::key::Role;
use cofferdam_contracts::recipe::{Recipe, RecipeRef};
use cofferdam_contracts::schedule::{ScheduleSpec, Timetable};
use cofferdam_contracts::trigger::{
    FiringRow, HookRequest, HookRow, ScheduleRequest, ScheduleRow, TriggerKind, TriggerState,
    hook_path,
};
use cofferdam_ledger::Ledger;
use cofferdam_ledger::audit::Audit;
use cofferdam_ledger::keys::{DEFAULT_TENANT, KEYLESS, Principal};
use cofferdam_ledger::recipes::RecipeQuery;
use cofferdam_ledger::triggers::{NewTrigger, NextInstant, Trigger, TriggerSpec};
use serde_json::json;

use crate::error::{Error, Result};
use crate::guesses::Guesses;
use crate::runs::Runs;
use crate::secrets::Secrets;

/// Schedules and hooks of this installation's tenants.
#[derive(Debug, Clone)]
pub struct Triggers {
    pub(crate) ledger: Ledger,
    pub(crate) runs: Runs,
    secrets: Secrets,
    guesses: Arc<Guesses>,
}

fn violation(path: &str, message: impl Into<String>) -> Refusal {
    Refusal::violations(&[Violation { instance_path: path.into(), message: message.into() }])
}

/// The first instant of a schedule after now, and after an instant that is on record: the clock may have gone back since.
fn first(id: &TriggerId, spec: &ScheduleSpec, newest_ms: i64) -> Result<NextInstant> {
    let table = Timetable::new(spec).map_err(|why| violation("/schedule", why))?;
    let next = table.next(now_ms().max(newest_ms)).map(|at_ms| look::instant(id, spec, at_ms));
    Ok(next
        .ok_or_else(|| violation("/schedule/cron", "the pattern has no instant: it never fires"))?)
}

fn fresh(kind: &str) -> Result<TriggerId> {
    TriggerId::parse(&format!("{kind}_{}", secret_hex(16))).map_err(Error::corrupt("trigger id"))
}

impl Triggers {
    pub(crate) fn new(ledger: &Ledger, runs: &Runs, secrets: &Secrets) -> Self {
        let (runs, secrets) = (runs.clone(), secrets.clone());
        Self { ledger: ledger.clone(), runs, secrets, guesses: Arc::default() }
    }

    /// The recipe that is consented to. It has to run without a caller.
    async fn recipe(
        &self,
        who: &Principal,
        reference: &RecipeRef,
        hash: Option<&Digest>,
    ) -> Result<Recipe> {
        if who.key_id == KEYLESS {
            let why = "its runs need a key's rights, and this server asks for none: send a key";
            return Err(Refusal::new(ErrorCode::PolicyViolation, why).into());
        }
        let wanted = RecipeQuery { id: &reference.id, v: Some(&reference.v), hash };
        let found = self.ledger.recipes().find(&who.tenant, wanted).await?;
        let recipe = found.filter(|recipe| recipe.v == reference.v);
        let recipe = recipe.ok_or_else(|| Refusal::not_found("recipe"))?;
        match recipe.input() {
            None => Ok(recipe),
            Some(_) => {
                let why = "exec.input: a client sends it while the run goes on, and a run of a trigger has no client";
                Err(Refusal::new(ErrorCode::PolicyViolation, why).into())
            }
        }
    }

    async fn add(
        &self,
        who: &Principal,
        op: &str,
        recipe: &Recipe,
        new: &NewTrigger<'_>,
    ) -> Result<Trigger> {
        let detail =
            json!({"name": new.name, "recipe": recipe.reference(), "recipeHash": new.recipe_hash});
        let entry = Audit { detail: Some(detail), ..Audit::by(who, op, new.id.as_str()) };
        self.ledger.triggers().add(new, &entry).await?;
        self.named(who, new.spec.kind(), new.name).await
    }

    /// One of the caller's tenant.
    async fn named(
        &self,
        who: &Principal,
        kind: TriggerKind,
        name: &TriggerName,
    ) -> Result<Trigger> {
        let found = self.ledger.triggers().by_name(&who.tenant, kind, name).await?;
        Ok(found.ok_or_else(|| Refusal::not_found(kind.as_str()))?)
    }

    /// A trigger's newest firings, newest first.
    pub async fn firings(
        &self,
        who: &Principal,
        kind: TriggerKind,
        name: &TriggerName,
        limit: i64,
    ) -> Result<Vec<FiringRow>> {
        let trigger = self.named(who, kind, name).await?;
        Ok(self.ledger.triggers().firings(&trigger.id, limit).await?)
    }

    /// Adds a schedule: the caller's consent to its runs.
    pub async fn schedule_add(
        &self,
        who: &Principal,
        request: &ScheduleRequest,
    ) -> Result<ScheduleRow> {
        let mut recipe =
            self.recipe(who, &request.recipe_ref, request.recipe_hash.as_ref()).await?;
        let recipe_hash = recipe.hash()?;
        let spec =
            request.schedule.clone().or_else(|| recipe.schedule.clone()).ok_or_else(|| {
                violation("/schedule", "the recipe has no schedule: give it one, or pass one here")
            })?;
        recipe.schedule = Some(spec.clone());
        recipe.check().map_err(|why| violation("/schedule", why))?;
        self.within_interval(who, &spec).await?;
        let id = fresh("sc")?;
        let name = match &request.name {
            Some(name) => name.clone(),
            None => TriggerName::parse(recipe.id.as_str()).map_err(Error::corrupt("name"))?,
        };
        let next = Some(first(&id, &spec, 0)?);
        let (reference, spec) = (recipe.reference(), TriggerSpec::Schedule(spec));
        let new = NewTrigger {
            id: &id,
            name: &name,
            recipe: &reference,
            recipe_hash: &recipe_hash,
            spec: &spec,
            next,
        };
        let added = self.add(who, "schedule.add", &recipe, &new).await?;
        schedule_row(added, None)
    }

    /// Refuses a schedule whose instants are closer than the host allows.
    async fn within_interval(&self, who: &Principal, spec: &ScheduleSpec) -> Result<()> {
        let table = Timetable::new(spec).map_err(|why| violation("/schedule", why))?;
        let key = ConfigKey::ScheduleInterval;
        let rows = self.ledger.config().rows(&who.tenant).await?;
        let least_s = value_of(key, &rows).as_i64().unwrap_or(i64::MAX);
        match table.shortest_gap_ms() {
            Some(gap_ms) if gap_ms.div_euclid(1_000) < least_s => {
                let gap_s = gap_ms.div_euclid(1_000);
                let why = format!(
                    "instants are {gap_s} s apart, and this host allows {least_s} s at least; an admin changes {key}"
                );
                Err(violation("/schedule/cron", why).into())
            }
            _ => Ok(()),
        }
    }

    /// The schedules of the caller's tenant, by name.
    pub async fn schedules(&self, who: &Principal) -> Result<Vec<ScheduleRow>> {
        let found = self.ledger.triggers().list(&who.tenant, TriggerKind::Schedule).await?;
        let ids: Vec<&str> = found.iter().map(|trigger| trigger.id.as_str()).collect();
        let mut newest = self.ledger.triggers().newest(&ids).await?;
        let row = |trigger: Trigger| {
            let last = newest.remove(trigger.id.as_str());
            schedule_row(trigger, last)
        };
        found.into_iter().map(row).collect()
    }

    /// Pauses or resumes a schedule. Instants while it is paused are not firings; what waited of it is skipped.
    pub async fn schedule_set(
        &self,
        who: &Principal,
        name: &TriggerName,
        state: TriggerState,
    ) -> Result<ScheduleRow> {
        let trigger = self.named(who, TriggerKind::Schedule, name).await?;
        let next = match (&trigger.spec, state) {
            (TriggerSpec::Schedule(spec), TriggerState::Active) => {
                let newest = self.ledger.triggers().firings(&trigger.id, 1).await?;
                let at = newest.first().and_then(|row| row.event.parse::<Instant>().ok());
                Some(first(&trigger.id, spec, at.map_or(0, Instant::ms))?)
            }
            _ => None,
        };
        let op = if state == TriggerState::Active { "schedule.resume" } else { "schedule.pause" };
        if !self.move_to(who, &trigger, state, next, op).await? {
            let why = format!("the schedule is {} already", state.as_str());
            return Err(Refusal::new(ErrorCode::StateConflict, why).into());
        }
        let now = self.named(who, TriggerKind::Schedule, name).await?;
        let last = self.ledger.triggers().firings(&now.id, 1).await?.into_iter().next();
        schedule_row(now, last)
    }

    /// Removes a schedule or a hook; its firings stay on record.
    pub async fn remove(
        &self,
        who: &Principal,
        kind: TriggerKind,
        name: &TriggerName,
    ) -> Result<()> {
        let trigger = self.named(who, kind, name).await?;
        let op = format!("{}.remove", kind.as_str());
        match self.move_to(who, &trigger, TriggerState::Removed, None, &op).await? {
            true => Ok(()),
            false => Err(Refusal::not_found(kind.as_str()).into()),
        }
    }

    async fn move_to(
        &self,
        who: &Principal,
        trigger: &Trigger,
        state: TriggerState,
        next: Option<NextInstant>,
        op: &str,
    ) -> Result<bool> {
        // A submitter's own trigger is its own to steer.
        if !who.has(Role::Operator) && trigger.key_id != who.key_id {
            let why = "another key added it: this needs the role operator";
            return Err(Refusal::new(ErrorCode::Forbidden, why).into());
        }
        let entry = Audit {
            detail: Some(json!({"name": trigger.name})),
            ..Audit::by(who, op, trigger.id.as_str())
        };
        Ok(self.ledger.triggers().state_set(&trigger.id, state, next, &entry).await?)
    }

    /// Adds a hook: the caller's consent to runs by whoever can sign with the secret.
    pub async fn hook_add(&self, who: &Principal, request: &HookRequest) -> Result<HookRow> {
        request.hook.check().map_err(|why| violation("/hook", why))?;
        if !who.has(Role::Submitter) {
            let why = "its runs have your key's rights, and those start no run: this needs the role submitter too";
            return Err(Refusal::new(ErrorCode::Forbidden, why).into());
        }
        let recipe = self.recipe(who, &request.recipe_ref, request.recipe_hash.as_ref()).await?;
        let secret = &request.hook.secret;
        if self.ledger.secrets().sealed(&who.tenant, secret, None).await?.is_none() {
            let why = format!(
                "the tenant has no secret {secret}; set it with `cofferdam secret set {secret}`"
            );
            return Err(violation("/hook/secret", why).into());
        }
        let (id, reference, recipe_hash) = (fresh("hk")?, recipe.reference(), recipe.hash()?);
        let spec = TriggerSpec::Hook(request.hook.clone());
        let new = NewTrigger {
            id: &id,
            name: &request.name,
            recipe: &reference,
            recipe_hash: &recipe_hash,
            spec: &spec,
            next: None,
        };
        hook_row(self.add(who, "hook.add", &recipe, &new).await?)
    }

    /// The hooks of the caller's tenant, by name.
    pub async fn hooks(&self, who: &Principal) -> Result<Vec<HookRow>> {
        let found = self.ledger.triggers().list(&who.tenant, TriggerKind::Hook).await?;
        found.into_iter().map(hook_row).collect()
    }
}

fn schedule_row(trigger: Trigger, last: Option<FiringRow>) -> Result<ScheduleRow> {
    let TriggerSpec::Schedule(schedule) = trigger.spec else {
        return Err(Error::corrupt("schedule")("it is a hook"));
    };
    Ok(ScheduleRow {
        schedule_id: trigger.id,
        name: trigger.name,
        recipe_ref: trigger.recipe,
        recipe_hash: trigger.recipe_hash,
        schedule,
        state: trigger.state,
        key_id: trigger.key_id,
        next_at: trigger.next_ms,
        firings: trigger.firings,
        last,
        created_at: trigger.created_at,
    })
}

fn hook_row(trigger: Trigger) -> Result<HookRow> {
    let TriggerSpec::Hook(hook) = trigger.spec else {
        return Err(Error::corrupt("hook")("it is a schedule"));
    };
    Ok(HookRow {
        path: hook_path(&trigger.id, &trigger.name, trigger.tenant.as_str() == DEFAULT_TENANT),
        hook_id: trigger.id,
        name: trigger.name,
        recipe_ref: trigger.recipe,
        recipe_hash: trigger.recipe_hash,
        scheme: hook.scheme,
        events: hook.events,
        inputs: hook.inputs,
        state: trigger.state,
        key_id: trigger.key_id,
        firings: trigger.firings,
        unsigned: trigger.unsigned,
        created_at: trigger.created_at,
    })
}
