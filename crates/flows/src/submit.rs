//! Starting runs: every check before the first write, then one transaction.

use cofferdam_contracts::canonical::digest;
use cofferdam_contracts::error::{ErrorCode, Refusal};
use cofferdam_contracts::gate::Origin;
use cofferdam_contracts::id::{Digest, IntentId, RunId, WorkflowId};
use cofferdam_contracts::plan;
use cofferdam_contracts::profile::Settings;
use cofferdam_contracts::recipe::{Lane, Recipe};
use cofferdam_contracts::run::{
    Budget, Constraints, IntentRequest, RecipeRunRequest, RunHeader, RunRequest,
};
use cofferdam_contracts::schema::{Validator, with_defaults};
use cofferdam_ledger::LedgerError;
use cofferdam_ledger::engine::INTENT_QUEUE;
use cofferdam_ledger::intents::NewIntent;
use cofferdam_ledger::keys::Principal;
use cofferdam_ledger::runs::{ExistingRun, NewRun, Started};
use serde_json::{Value, json};

use crate::{Flows, config, decide, egress};

/// The recipe of a run that names none: one shell command, `{cmd}`.
const SHELL_RECIPE: &str = r#"
id: shell
v: "1"
title: Run one shell command in a sandbox
form:
  type: object
  required: [cmd]
  additionalProperties: false
  properties:
    cmd: {type: string, minLength: 1, maxLength: 100000, description: the command for /bin/sh -c}
plan:
  tasks:
    - {name: shell, exec: {run: "${form.cmd}"}}
"#;

/// The built-in recipe. `None` never happens: a test parses the text.
pub(crate) fn builtin() -> Option<Recipe> {
    Recipe::from_yaml("built-in", SHELL_RECIPE).ok()
}

/// A started or found run.
#[derive(Debug, Clone)]
pub struct Submitted {
    /// Its header, with `isReplay` set.
    pub header: RunHeader,
    /// Whether it was there already.
    pub is_replay: bool,
}

/// What a start decides beside its recipe.
struct Terms {
    partition_key: String,
    priority: i32,
    budget: Option<Budget>,
    timeout_ms: Option<u64>,
    trace_id: Option<String>,
    dedup: Option<String>,
    intent_hash: Option<Digest>,
}

pub(crate) fn internal(error: impl std::fmt::Display) -> LedgerError {
    Refusal::new(ErrorCode::Internal, error.to_string()).into()
}

impl Flows {
    /// `POST /api/runs`.
    pub async fn run_submit(
        &self,
        who: &Principal,
        request: &RunRequest,
    ) -> Result<Submitted, LedgerError> {
        // An unknown intent is 404 before policy is looked at.
        let intent = self
            .ledger
            .intent_by_id(&who.tenant, &request.intent_id)
            .await?
            .ok_or_else(|| Refusal::not_found("intent"))?;
        own_tenant(who, request)?;
        let version = request.recipe_version.as_deref();
        let stored = match &request.recipe_name {
            Some(name) => self.ledger.recipe_find(&who.tenant, name, version).await?,
            None => None,
        };
        let recipe = stored
            .or_else(|| {
                builtin().filter(|r| request.recipe_name.as_ref().is_none_or(|name| r.id == *name))
            })
            .filter(|r| version.is_none_or(|v| r.v == v))
            .ok_or_else(|| Refusal::not_found("recipe"))?;
        crate::cache::own_caches(&recipe, &who.tenant)?;
        let form = form_of(&recipe, intent.inputs)?;
        preview(&recipe, &form, &config::settings(&self.ledger, &who.tenant).await?)?;
        egress::admit(&self.ledger, who, Some(&request.intent_id), &recipe).await?;
        self.ledger.quota_admit(&who.tenant).await?;
        decide::queue_policy(
            &recipe.caps,
            request.workload.as_ref(),
            request.budget.as_ref(),
            request.timeout_ms,
        )?;
        let lane = request.lane.or(recipe.queue.map(|q| q.lane)).unwrap_or_default();
        let terms = Terms {
            partition_key: partition(who, request.queue_partition_key.as_deref())?,
            priority: request.priority.unwrap_or(lane.priority()),
            budget: request.budget,
            timeout_ms: request.timeout_ms,
            trace_id: request.trace_id.clone(),
            dedup: request.deduplication_id.clone(),
            intent_hash: None,
        };
        self.start(who, &request.intent_id, &recipe, terms).await
    }

    /// `POST /api/run`: two equal starts are one run.
    pub async fn recipe_submit(
        &self,
        who: &Principal,
        request: &RecipeRunRequest,
    ) -> Result<Submitted, LedgerError> {
        let reference = &request.recipe_ref;
        let (tenant, id, ledger) = (&who.tenant, &reference.id, &self.ledger);
        let found = match &request.recipe_hash {
            Some(hash) => ledger.recipe_by_hash(tenant, id, hash).await?,
            None => ledger.recipe_find(tenant, id, Some(&reference.v)).await?,
        };
        let recipe = found
            .filter(|recipe| recipe.v == reference.v)
            .or_else(|| {
                let meant =
                    |r: &Recipe| request.recipe_hash.is_none() && r.reference() == *reference;
                builtin().filter(meant)
            })
            .ok_or_else(|| Refusal::not_found("recipe"))?;
        crate::cache::own_caches(&recipe, &who.tenant)?;
        let form = form_of(&recipe, Value::Object(request.form_data.clone()))?;
        preview(&recipe, &form, &config::settings(&self.ledger, &who.tenant).await?)?;
        egress::admit(&self.ledger, who, None, &recipe).await?;
        self.ledger.quota_admit(&who.tenant).await?;
        let opts = &request.opts;
        decide::queue_policy(
            &recipe.caps,
            opts.workload.as_ref(),
            opts.budget.as_ref(),
            opts.timeout_ms,
        )?;
        let partition_key = partition(who, opts.queue_partition_key.as_deref())?;
        let constraints = Constraints { plan_approval_timeout_s: opts.plan_approval_timeout_s };
        let Value::Object(inputs) = form else { return Err(internal("a form is an object")) };
        let intent = IntentRequest {
            goal: recipe.title.clone().unwrap_or_else(|| format!("{}@{}", recipe.id, recipe.v)),
            inputs,
            constraints,
            connectors: None,
        };
        let hash = digest(&json!({
            "tenant": who.tenant, "intent": intent, "recipe": reference,
            "recipeHash": recipe.hash()?, "runKey": opts.run_key,
        }))?;
        let id = IntentId::parse(&format!("ih_{hash}")).map_err(internal)?;
        self.ledger
            .intent_create(&NewIntent {
                id: &id,
                tenant: &who.tenant,
                request: &intent,
                hash: Some(&hash),
                key_id: &who.key_id,
                origin: Origin::ApiShim,
            })
            .await?;
        let lane: Lane = opts.lane.or(recipe.queue.map(|q| q.lane)).unwrap_or_default();
        let terms = Terms {
            partition_key,
            priority: opts.priority.unwrap_or(lane.priority()),
            budget: opts.budget,
            timeout_ms: opts.timeout_ms,
            trace_id: opts.trace_id.clone(),
            dedup: None,
            intent_hash: Some(hash),
        };
        self.start(who, &id, &recipe, terms).await
    }

    async fn start(
        &self,
        who: &Principal,
        intent: &IntentId,
        recipe: &Recipe,
        terms: Terms,
    ) -> Result<Submitted, LedgerError> {
        let new = NewRun {
            id: RunId::parse(&format!("rn_{}", self.ids.hex(&format!("run:{intent}:0"), 16)))
                .map_err(internal)?,
            intent_id: intent.clone(),
            workflow_id: WorkflowId::parse(intent.as_str()).map_err(internal)?,
            tenant: who.tenant.clone(),
            recipe: recipe.reference(),
            recipe_hash: recipe.hash()?,
            intent_hash: terms.intent_hash,
            trace_id: terms.trace_id,
            budget: terms.budget,
            timeout_ms: terms.timeout_ms,
            partition_key: terms.partition_key,
            priority: terms.priority,
            dedup: terms.dedup,
            retry_count: 0,
            retry_of: None,
            asked_by: None,
            origin: Origin::ApiShim,
            key_id: who.key_id.clone(),
        };
        match self.ledger.run_start(&new).await {
            Ok(Started::Created) => {
                let mut header = self
                    .ledger
                    .run_header(&who.tenant, new.id.as_str())
                    .await?
                    .ok_or_else(|| internal("a run that was just written is not there"))?;
                header.is_replay = Some(false);
                Ok(Submitted { header, is_replay: false })
            }
            Ok(Started::Existing(existing)) => {
                same_run(&new, &existing)?;
                let mut header = existing.header;
                header.is_replay = Some(true);
                Ok(Submitted { header, is_replay: true })
            }
            Err(e) if e.is_unique_violation() => Err(Refusal::new(
                ErrorCode::Conflict,
                "a live run with this deduplicationID is queued or running",
            )
            .into()),
            Err(e) => Err(e),
        }
    }
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

/// Compiles without looking at files, so that what can be known now is refused now.
fn preview(recipe: &Recipe, form: &Value, settings: &Settings) -> Result<(), Refusal> {
    const LATER: &str = "files are listed when the plan is compiled";
    match plan::compile(recipe, form, settings, &|_, _| Err(LATER.to_owned())) {
        Err(refusal) if !refusal.message.contains(LATER) => Err(refusal),
        _ => Ok(()),
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
    fn the_built_in_recipe_parses() {
        assert!(builtin().is_some());
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
