//! Starting runs: every check before the first write, then one transaction.

use std::collections::BTreeSet;

use cofferdam_contracts::canonical::digest;
use cofferdam_contracts::error::{ErrorCode, Refusal};
use cofferdam_contracts::gate::Origin;
use cofferdam_contracts::id::{Digest, IntentId, RunId, WorkflowId};
use cofferdam_contracts::input::InputMode;
use cofferdam_contracts::plan::{self, CompileError, Plan};
use cofferdam_contracts::profile::Settings;
use cofferdam_contracts::recipe::Recipe;
use cofferdam_contracts::run::{
    Constraints, IntentRequest, RecipeRunRequest, RunHeader, RunOpts, RunRequest,
};
use cofferdam_contracts::schema::{Validator, with_defaults};
use cofferdam_contracts::template::GlobError;
use cofferdam_contracts::terms::RunTerms;
use cofferdam_ledger::engine::INTENT_QUEUE;
use cofferdam_ledger::firings::{FireOutcome, FiringCause};
use cofferdam_ledger::intents::NewIntent;
use cofferdam_ledger::keys::Principal;
use cofferdam_ledger::recipes::{Admission, RecipeQuery};
use cofferdam_ledger::runs::{ExistingRun, NewRun, StartOutcome};
use cofferdam_ledger::trees::IntentTree;
use serde_json::{Value, json};

use crate::admission::HostReach;
use crate::error::{Error, Result};
use crate::models::planner_admit;
use crate::recipes::builtin;
use crate::runs::Runs;
use crate::{checks, config, decide, egress, floor, secrets, strict, toolchains, trees};

/// A started or found run.
#[derive(Debug, Clone)]
pub struct Submission {
    /// Its header, with `isReplay` set.
    pub header: RunHeader,
    /// Whether it was there already.
    pub is_replay: bool,
}

/// A request for a run, whichever door it came through.
struct Start<'a> {
    who: &'a Principal,
    intent: Intent<'a>,
    recipe: Recipe,
    admission: Admission,
    /// As it was sent: neither validated nor filled in.
    form: Value,
    terms: RunTerms,
    /// A second live run with this id is refused.
    dedup: Option<String>,
    /// Whether its client waits for its whole output.
    fed: bool,
    /// The firing that it is the run of.
    cause: Option<FiringCause<'a>>,
}

/// A start that passed every check.
struct CheckedStart {
    new: NewRun,
    made: Option<IntentRequest>,
    input: Option<InputMode>,
    /// The host directories that it binds.
    trees: Vec<IntentTree>,
}

/// Where the intent of a run comes from.
enum Intent<'a> {
    /// It was written before.
    Stored(&'a IntentId),
    /// The request makes it: equal requests are one intent, and so one run.
    Made(&'a RunOpts),
}

impl Intent<'_> {
    fn stored(&self) -> Option<&IntentId> {
        match self {
            Self::Stored(id) => Some(id),
            Self::Made(_) => None,
        }
    }
}

impl Runs {
    /// Runs a stored intent for `POST /api/runs`; a replay finds the existing run.
    pub async fn submit(&self, who: &Principal, request: &RunRequest) -> Result<Submission> {
        // An unknown intent is 404 before policy is looked at.
        let intent = self
            .ledger
            .intents()
            .by_id(&who.tenant, &request.intent_id)
            .await?
            .ok_or_else(|| Refusal::not_found("intent"))?;
        own_tenant(who, request)?;
        let version = request.recipe_version.as_deref();
        let wanted =
            request.recipe_name.as_ref().map(|id| RecipeQuery { id, v: version, hash: None });
        let (stored, admission) = self.ledger.recipes().admission(&who.tenant, wanted).await?;
        let recipe = stored
            .or_else(|| {
                builtin().filter(|r| request.recipe_name.as_ref().is_none_or(|name| r.id == *name))
            })
            .filter(|r| version.is_none_or(|v| r.v == v))
            .ok_or_else(|| Refusal::not_found("recipe"))?;
        self.start(Start {
            who,
            intent: Intent::Stored(&request.intent_id),
            recipe,
            admission,
            form: intent.inputs,
            terms: request.terms(),
            dedup: request.deduplication_id.clone(),
            fed: false,
            cause: None,
        })
        .await
    }

    /// `POST /api/run`: two equal starts are one run. `fed`: the client waits for the run's whole output.
    pub async fn submit_recipe(
        &self,
        who: &Principal,
        request: &RecipeRunRequest,
        fed: bool,
    ) -> Result<Submission> {
        self.start(self.start_of(who, request, fed, None).await?).await
    }

    /// The run of a firing, on record with it; or why it has none, in the terms of its trigger.
    pub(crate) async fn submit_fired(
        &self,
        who: &Principal,
        request: &RecipeRunRequest,
        cause: FiringCause<'_>,
    ) -> Result<FireOutcome> {
        let start = self.start_of(who, request, false, Some(cause)).await?;
        let CheckedStart { new, made, trees, .. } = self.admitted(start).await?;
        Ok(self
            .ledger
            .triggers()
            .fire(&new, intent_of(&new, made.as_ref()).as_ref(), &trees, &cause)
            .await?)
    }

    async fn start_of<'a>(
        &self,
        who: &'a Principal,
        request: &'a RecipeRunRequest,
        fed: bool,
        cause: Option<FiringCause<'a>>,
    ) -> Result<Start<'a>> {
        let reference = &request.recipe_ref;
        let wanted = RecipeQuery {
            id: &reference.id,
            v: Some(&reference.v),
            hash: request.recipe_hash.as_ref(),
        };
        let (found, admission) = self.ledger.recipes().admission(&who.tenant, Some(wanted)).await?;
        let recipe = found
            .filter(|recipe| recipe.v == reference.v)
            .or_else(|| {
                let meant =
                    |r: &Recipe| request.recipe_hash.is_none() && r.reference() == *reference;
                builtin().filter(meant)
            })
            .ok_or_else(|| Refusal::not_found("recipe"))?;
        Ok(Start {
            who,
            intent: Intent::Made(&request.opts),
            recipe,
            admission,
            form: Value::Object(request.form_data.clone()),
            terms: request.opts.terms(),
            dedup: None,
            fed,
            cause,
        })
    }

    /// Every check, then the writes.
    async fn start(&self, start: Start<'_>) -> Result<Submission> {
        let (who, fed) = (start.who, start.fed);
        let CheckedStart { new, made, input, trees } = self.admitted(start).await?;
        let fed = fed && self.feeds.expect(&new.id, &who.key_id, input);
        if input.is_some() && !fed && self.feeds.of(&new.id, &who.key_id).is_none() {
            return Err(no_room().into());
        }
        let submitted = self.write(&new, made.as_ref(), &trees).await;
        if fed && !matches!(&submitted, Ok(made) if !made.is_replay) {
            self.feeds.forget(&new.id);
        }
        submitted
    }

    /// Every check, and what would be written.
    async fn admitted(&self, start: Start<'_>) -> Result<CheckedStart> {
        let Start { who, intent, recipe, admission, form, terms, dedup, fed, cause } = start;
        decide::own_caches(&recipe, &who.tenant)?;
        let input = recipe.input();
        if input.is_some() && !fed {
            return Err(unattended().into());
        }
        let settings = config::table(&admission.config, &who.tenant)?;
        let dirs = toolchains::dirs(&admission.config);
        let checked = checks::check(&who.tenant, || {
            let form = form_of(&recipe, form)?;
            let plan = preview(&recipe, &form, &settings)?;
            let reach = HostReach { is_admin: who.is_host_admin(), is_relayed: fed };
            let absence = plan.as_ref().and_then(|plan| self.admission.absence(plan, reach));
            // Only a host that executes can tell.
            let absence = absence.or_else(|| {
                self.trees.host().and_then(|_| toolchains::absence(plan.as_ref()?, &dirs))
            });
            let mut sources = plan.as_ref().map(trees::sources).unwrap_or_default();
            // A plan that lists files is compiled by the host that executes, which may not have what was sent here.
            sources.extend(trees::sent_by(&form));
            Ok::<_, Refusal>((form, absence, sources))
        });
        let (form, absence, sources) = checked.await??;
        if floor::binds(&recipe) {
            floor::admit(&self.ledger, &settings).await?;
        }
        self.models.admit(&who.tenant, &strict::models_of(&recipe)).await?;
        self.applies.admit(&who.tenant, &recipe, &form).await?;
        egress::admit(&self.ledger, who, intent.stored(), &recipe).await?;
        let attended = who.is_host_admin() || egress::asks_a_person(recipe.plan.gate.as_ref());
        secrets::admit(&self.ledger, &who.tenant, &secrets::recipe_uses(&recipe), attended).await?;
        if let Some(agent) = &recipe.plan.agent {
            planner_admit(&self.ledger, &who.tenant, agent).await?;
        }
        if let Some(refusal) = admission.over_quota {
            return Err(refusal.into());
        }
        decide::queue_policy(
            &recipe.caps,
            terms.workload.as_ref(),
            terms.budget.as_ref(),
            terms.timeout_ms,
        )?;
        let partition_key = partition(who, terms.queue_partition_key.as_deref())?;
        let lane = terms.lane.or(recipe.queue.map(|q| q.lane)).unwrap_or_default();
        let (intent_id, intent_hash, made) = match intent {
            Intent::Stored(id) => (id.clone(), None, None),
            Intent::Made(opts) => {
                let (id, hash, made) = intent_made(who, &recipe, form, opts, cause.as_ref())?;
                (id, Some(hash), Some(made))
            }
        };
        let run_id = format!("rn_{}", self.ids.hex(&format!("run:{intent_id}:0"), 16));
        let new = NewRun {
            id: RunId::parse(&run_id).map_err(Error::corrupt("run id"))?,
            workflow_id: WorkflowId::parse(intent_id.as_str())
                .map_err(Error::corrupt("workflow id"))?,
            intent_id,
            tenant: who.tenant.clone(),
            recipe: recipe.reference(),
            recipe_hash: recipe.hash()?,
            intent_hash,
            trace_id: terms.trace_id,
            budget: terms.budget,
            timeout_ms: terms.timeout_ms,
            partition_key,
            priority: terms.priority.unwrap_or(lane.priority()),
            dedup,
            mode_wanted: terms.execution_mode,
            retry_count: 0,
            retry_of: None,
            asked_by: None,
            origin: match cause {
                None => Origin::ApiShim,
                Some(FiringCause::Instant { .. }) => Origin::EngineDbos,
                Some(FiringCause::Delivery(_)) => Origin::WebhookCi,
            },
            key_id: who.key_id.clone(),
        };
        if let Some(absence) = absence {
            self.absent(&new, absence).await?;
        }
        let trees = self.bound(&new, who, sources).await?;
        Ok(CheckedStart { new, made, input, trees })
    }

    /// Refuses a new run whose tasks need what the host does not have. One that is on record is found again, whatever became
    /// of its files since.
    async fn absent(&self, new: &NewRun, absence: Refusal) -> Result<()> {
        let existing = self.ledger.runs().header(&new.tenant, new.workflow_id.as_str()).await?;
        let is_new = existing.is_none();
        match is_new && self.admission.is_decisive(&self.ledger).await? {
            true => Err(absence.into()),
            false => Ok(()),
        }
    }

    /// The host directories of a new run, bound by their content as it is now. One that is on record has bound them.
    async fn bound(
        &self,
        new: &NewRun,
        who: &Principal,
        sources: BTreeSet<String>,
    ) -> Result<Vec<IntentTree>> {
        if sources.is_empty() {
            return Ok(Vec::new());
        }
        let existing = self.ledger.runs().header(&new.tenant, new.workflow_id.as_str()).await?;
        match existing {
            Some(_) => Ok(Vec::new()),
            None => {
                let is_admin = who.is_host_admin() && self.ledger.runs().has_reach(new).await?;
                Ok(self.trees.bind(sources, &who.tenant, is_admin).await?)
            }
        }
    }

    /// Writes the run, or finds the one that its intent has already.
    async fn write(
        &self,
        new: &NewRun,
        made: Option<&IntentRequest>,
        trees: &[IntentTree],
    ) -> Result<Submission> {
        let intent = intent_of(new, made);
        match self.ledger.runs().start(new, intent.as_ref(), trees).await {
            Ok(StartOutcome::Created(mut header)) => {
                header.is_replay = Some(false);
                Ok(Submission { header: *header, is_replay: false })
            }
            Ok(StartOutcome::Existing(existing)) => {
                same_run(new, &existing)?;
                let mut header = existing.header;
                header.is_replay = Some(true);
                Ok(Submission { header, is_replay: true })
            }
            Err(e) if e.is_unique_violation() => Err(Refusal::new(
                ErrorCode::Conflict,
                "a live run with this deduplicationID is queued or running",
            )
            .into()),
            Err(e) => Err(e.into()),
        }
    }
}

/// The row of the intent that a start makes.
fn intent_of<'a>(new: &'a NewRun, made: Option<&'a IntentRequest>) -> Option<NewIntent<'a>> {
    made.map(|request| NewIntent {
        id: &new.intent_id,
        tenant: &new.tenant,
        request,
        hash: new.intent_hash.as_ref(),
        key_id: &new.key_id,
        origin: new.origin,
    })
}

/// The intent of a recipe's run, whose id is the hash of what was asked. No caller can ask for a firing's.
fn intent_made(
    who: &Principal,
    recipe: &Recipe,
    form: Value,
    opts: &RunOpts,
    cause: Option<&FiringCause<'_>>,
) -> Result<(IntentId, Digest, IntentRequest)> {
    let Value::Object(inputs) = form else {
        return Err(Error::corrupt("form")("it is not an object"));
    };
    let intent = IntentRequest {
        goal: recipe.title.clone().unwrap_or_else(|| format!("{}@{}", recipe.id, recipe.v)),
        inputs,
        constraints: Constraints { plan_approval_timeout_s: opts.plan_approval_timeout_s },
        connectors: None,
    };
    let mut asked = json!({
        "tenant": who.tenant, "intent": intent, "recipe": recipe.reference(),
        "recipeHash": recipe.hash()?, "runKey": opts.run_key,
    });
    if let (Some(cause), Some(fields)) = (cause, asked.as_object_mut()) {
        fields.insert("firing".into(), json!(cause.identity()));
    }
    let hash = digest(&asked)?;
    let id = IntentId::parse(&format!("ih_{hash}")).map_err(Error::corrupt("intent id"))?;
    Ok((id, hash, intent))
}

/// Nobody would send the input that a command waits for.
fn unattended() -> Refusal {
    let why = "exec.input: the client sends it while the run goes on; start it with POST /api/run?output=true, or with \
               `cofferdam exec -i`";
    Refusal::new(ErrorCode::PolicyViolation, why)
}

/// Clients that send input have a bound, and without one its command cannot run.
fn no_room() -> Refusal {
    let why = "this server serves as many clients of running commands as it may, or as one key may: try again when one \
               of them has ended";
    Refusal::new(ErrorCode::Unavailable, why)
}

fn own_tenant(who: &Principal, request: &RunRequest) -> Result<(), Refusal> {
    if request.tenant_id.as_ref().is_some_and(|t| *t != who.tenant) {
        return Err(Refusal::new(ErrorCode::PolicyViolation, "tenantId is not the key's tenant"));
    }
    if request.queue_name.as_deref().is_some_and(|q| q != INTENT_QUEUE) {
        return Err(Refusal::new(
            ErrorCode::QueuePolicyViolation,
            "a run goes to intentQ and to no other queue",
        ));
    }
    if request.task_key.is_some() {
        return Err(Refusal::new(
            ErrorCode::QueuePolicyViolation,
            "taskKey names a task, not a run",
        ));
    }
    Ok(())
}

fn partition(who: &Principal, asked: Option<&str>) -> Result<String, Refusal> {
    let key = asked.unwrap_or(who.tenant.as_str());
    if key.trim().is_empty() || key.chars().any(char::is_control) {
        return Err(Refusal::new(
            ErrorCode::QueuePolicyViolation,
            "queuePartitionKey must not be blank",
        ));
    }
    // A tenant's caps are its partition's: with another's key it would use up another's share, and
    // with many keys it would have no caps. So keys are the tenant's own, or divisions of it.
    let own = key == who.tenant.as_str()
        || key.strip_prefix(who.tenant.as_str()).is_some_and(|rest| rest.starts_with('/'));
    if !own {
        let why = format!(
            "queuePartitionKey is the tenant ({}) or starts with it and a slash",
            who.tenant
        );
        return Err(Refusal::new(ErrorCode::QueuePolicyViolation, why));
    }
    Ok(key.to_owned())
}

fn form_of(recipe: &Recipe, mut form: Value) -> Result<Value, Refusal> {
    let schema = recipe.form_schema();
    with_defaults(&schema, &mut form);
    Validator::compile(&schema)?.check(&form)?;
    Ok(form)
}

/// Compiles without looking at files, so that what can be known now is refused now. `None`: it lists files.
fn preview(recipe: &Recipe, form: &Value, settings: &Settings) -> Result<Option<Plan>, Refusal> {
    match plan::compile(recipe, form, settings, &|_, _| Err(GlobError::Elsewhere)) {
        Ok(plan) => Ok(Some(plan)),
        Err(CompileError::NeedsFiles) => Ok(None),
        Err(CompileError::Refused(refusal)) => Err(refusal),
    }
}

/// A replay must be the same run; lane, priority and workload are not identity.
fn same_run(new: &NewRun, existing: &ExistingRun) -> Result<(), Refusal> {
    let header = &existing.header;
    let fields = [
        ("budget", json!(existing.budget), json!(new.budget)),
        ("traceId", json!(header.trace_id), json!(new.trace_id)),
        ("tenantId", json!(existing.tenant), json!(new.tenant)),
        ("queuePartitionKey", json!(existing.partition_key), json!(new.partition_key)),
        ("executionMode", json!(existing.mode_wanted), json!(new.mode_wanted)),
        ("recipe", json!(header.recipe_ref), json!(new.recipe)),
        ("recipeHash", json!(header.recipe_hash), json!(new.recipe_hash)),
    ];
    let drift: Vec<Value> = fields
        .into_iter()
        .filter(|(_, existing, incoming)| existing != incoming)
        .map(|(field, existing, incoming)| json!({"field": field, "existing": existing, "incoming": incoming}))
        .collect();
    if drift.is_empty() {
        return Ok(());
    }
    Err(Refusal::new(ErrorCode::Conflict, "the intent has a run that differs from this request")
        .with(json!({"drift": drift})))
}

#[cfg(test)]
mod tests {
    use super::*;
    use cofferdam_contracts::id::TenantId;

    fn who() -> Principal {
        Principal { key_id: "k".into(), tenant: TenantId::parse("acme").unwrap(), roles: vec![] }
    }

    #[test]
    fn partitions_are_the_tenants_own() {
        assert_eq!(partition(&who(), None).unwrap(), "acme");
        assert_eq!(partition(&who(), Some("acme/ci")).unwrap(), "acme/ci");
        for bad in ["", "  ", "\t", "other", "acmeplus", "acme/\n"] {
            assert!(partition(&who(), Some(bad)).is_err(), "{bad:?}");
        }
    }
}
