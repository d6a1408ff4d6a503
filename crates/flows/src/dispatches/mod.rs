//! Dispatches: an agent is sent off, and what was asked, enforced and overstepped stays on record.
//!
//! ```text
//! spawn --checks--> one transaction: intent, run, its workflow, app.dispatches, app.dispatch_runs
//!   run workflow -> task workflow (work, watch) -> result with the agent's report
//!   ledger::dispatch_end: status, counts and sandbox_effective, with the run's own end
//! ```
//! **A dispatch is a run like any other**: takeover, cancel, wipe and artifacts are the run's. Only its
//! plan is not compiled from a recipe, and nothing but [`Dispatches::spawn`] starts one.

mod agents;
mod changes;
mod equip;
mod event_line;
mod events;
mod findings;
mod import;
mod model;
mod programs;
mod project;
mod tool_uses;
mod tools;
mod watch;
mod work;

use std::sync::Arc;

use cofferdam_contracts::canonical::digest_bytes;
use cofferdam_contracts::dispatch::{
    CheckedSpec, DispatchStatus, DispatchView, MAX_PROMPT_BYTES, PruneRequest, PruneResponse,
    SpawnRequest, check_spec,
};
use cofferdam_contracts::error::{ErrorCode, Refusal};
use cofferdam_contracts::id::{DispatchId, IntentId};
use cofferdam_contracts::policy::entries::{FieldEntries, PhaseEntries};
use cofferdam_contracts::recipe::Lane;
use cofferdam_contracts::sandbox::{AccessMode, Egress, Phase, SandboxRequest};
use cofferdam_ledger::Ledger;
use cofferdam_ledger::audit::Audit;
use cofferdam_ledger::dispatches::NewDispatch;
use cofferdam_ledger::keys::Principal;
use cofferdam_ledger::ops::Cancels;
use cofferdam_sandbox::{AllowedPaths, HostPath, Links};
use serde_json::{Value, json};

use crate::error::{Error, Result};
use crate::fresh_ids::FreshIds;
use crate::models::Models;
use crate::quota::Quota;
use crate::secrets::FieldSecret;
use crate::static_recipe::Launch;
use crate::{config, egress, floor, secrets};

pub(crate) use changes::changes;
pub(crate) use equip::equipped;
pub(crate) use project::Project;
pub(crate) use watch::{Watch, jail, unstarted};
pub(crate) use work::RUN;

/// Ids that are tried before a spawn gives up: eight characters of 36 meet each other rarely.
const ID_TRIES: u32 = 8;
/// Hex digits of the hash of a prompt.
const PROMPT_HASH: usize = 16;
const LETTERS: &[u8; 36] = b"abcdefghijklmnopqrstuvwxyz0123456789";

/// What a repetition says of the dispatch that it repeats.
struct Repetition {
    id: DispatchId,
    retry_count: i64,
    /// The intent that is repeated, and whose it is: the new one is written in the same name.
    intent: Option<(IntentId, String)>,
    by_host_admin: bool,
}

/// Agents that work alone in sandboxes.
#[derive(Debug, Clone)]
pub struct Dispatches {
    ledger: Ledger,
    ids: FreshIds,
    /// Host directories that everybody's may be given, as far as this process knows.
    allowed: Arc<AllowedPaths>,
    quota: Quota,
    models: Models,
}

impl Dispatches {
    pub(crate) fn new(
        ledger: &Ledger,
        ids: &FreshIds,
        allowed: AllowedPaths,
        quota: &Quota,
        models: &Models,
    ) -> Self {
        Self {
            ledger: ledger.clone(),
            ids: ids.clone(),
            allowed: Arc::new(allowed),
            quota: quota.clone(),
            models: models.clone(),
        }
    }

    /// Starts a dispatch for `POST /api/dispatches`: its intent, run and row commit together.
    pub async fn spawn(&self, who: &Principal, request: &SpawnRequest) -> Result<DispatchView> {
        self.start(who, request, None).await
    }

    /// A dispatch that did not complete, again, as a new one that names it.
    pub async fn retry(&self, who: &Principal, id: &DispatchId) -> Result<DispatchView> {
        let found = self.ledger.dispatches().context(&who.tenant, id).await?;
        let found = found.ok_or_else(|| Refusal::not_found("dispatch"))?;
        let status = found.status;
        if !status.is_terminal() || status == DispatchStatus::Completed {
            let why = format!("a dispatch that is {} cannot be retried", status.as_str());
            return Err(Refusal::new(ErrorCode::StateConflict, why).into());
        }
        let request = found.request.ok_or_else(|| {
            let why = "this dispatch cannot be retried: it was imported, or its prompt was erased";
            Refusal::new(ErrorCode::StateConflict, why)
        })?;
        let of = Repetition {
            id: id.clone(),
            retry_count: found.retry_count,
            intent: found.intent,
            by_host_admin: found.by_host_admin,
        };
        self.start(who, &request, Some(of)).await
    }

    /// Ends a dispatch with its whole sandbox.
    pub async fn kill(&self, who: &Principal, id: &DispatchId) -> Result<DispatchView> {
        let found = self.ledger.dispatches().context(&who.tenant, id).await?;
        let found = found.ok_or_else(|| Refusal::not_found("dispatch"))?;
        let refuse = |why: String| Refusal::new(ErrorCode::StateConflict, why);
        if found.status.is_terminal() {
            return Err(refuse(format!("the dispatch is {} already", found.status.as_str())).into());
        }
        let workflow = found
            .workflow
            .ok_or_else(|| refuse("an imported dispatch has no process here".into()))?;
        self.ledger
            .ops()
            .cancel(&workflow, Cancels::All, &audit(who, "cancel", workflow.as_str(), None))
            .await?;
        self.view(who, id).await
    }

    /// Removes ended dispatches.
    pub async fn prune(&self, who: &Principal, request: &PruneRequest) -> Result<PruneResponse> {
        let detail = json!({"olderThanSec": request.older_than_sec});
        let audit = audit(who, "dispatch.prune", "dispatches", Some(detail));
        let done =
            self.ledger.dispatches().prune(&who.tenant, request.older_than_sec, &audit).await?;
        Ok(PruneResponse { pruned: done })
    }

    /// One dispatch, or a refusal.
    pub async fn view(&self, who: &Principal, id: &DispatchId) -> Result<DispatchView> {
        let found = self.ledger.dispatches().by_id(&who.tenant, id).await?;
        Ok(found.ok_or_else(|| Refusal::not_found("dispatch"))?)
    }

    async fn start(
        &self,
        who: &Principal,
        request: &SpawnRequest,
        of: Option<Repetition>,
    ) -> Result<DispatchView> {
        if request.prompt.len() > MAX_PROMPT_BYTES {
            let why = format!("the prompt has more than {MAX_PROMPT_BYTES} bytes");
            return Err(Refusal::new(ErrorCode::SchemaViolation, why).into());
        }
        let checked = match &request.sandbox_spec {
            Some(spec) => Some(check_spec(spec, request.lenient_spec)?),
            None => None,
        };
        self.reach(who, request, checked.as_ref(), of.as_ref()).await?;
        let spawn_depth = match &request.parent_id {
            Some(parent) => {
                let found = self.ledger.dispatches().context(&who.tenant, parent).await?;
                let not_found = || Refusal::not_found("the parent dispatch");
                found.ok_or_else(not_found)?.spawn_depth + 1
            }
            None => 0,
        };
        let mut tries = 0;
        loop {
            let id = self.id(who)?;
            match self.write(who, request, checked.as_ref(), &id, spawn_depth, of.as_ref()).await {
                Ok(()) => return self.view(who, &id).await,
                Err(e) if e.is_unique_violation() && tries < ID_TRIES => tries += 1,
                Err(e) => return Err(e),
            }
        }
    }

    /// Whose directories these are. Everybody but the host's own admin has only the allowed roots, and
    /// one answer for what is not there and for what is not allowed, so that nothing can be probed.
    async fn reach(
        &self,
        who: &Principal,
        request: &SpawnRequest,
        checked: Option<&CheckedSpec>,
        of: Option<&Repetition>,
    ) -> Result<()> {
        // What is retried is what somebody else asked for: it has no more reach than that one had.
        if who.is_host_admin() && of.is_none_or(|of| of.by_host_admin) {
            return Ok(());
        }
        let breach = |why: &str| Refusal::new(ErrorCode::PolicyViolation, why);
        if work::mode(request, checked) == AccessMode::Full {
            let why = "access_mode `full` writes the host's own directory: only its admin may";
            return Err(breach(why).into());
        }
        let repo = request.repo.as_ref().and_then(|repo| repo.path.as_ref());
        let shown = [Some(&request.project_dir), repo, request.worktree_of.as_ref()];
        for path in shown.into_iter().flatten() {
            if self.allowed.open(&HostPath::said(path), Links::Beneath).is_err() {
                return Err(breach("the project is outside the allowed roots").into());
            }
        }
        Ok(())
    }

    fn id(&self, who: &Principal) -> Result<DispatchId> {
        let hex = self.ids.hex(&format!("dispatch:{}:{}", who.tenant, self.ids.number()), 16);
        let text: String = hex
            .as_bytes()
            .chunks(4)
            .filter_map(|digits| usize::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok())
            .filter_map(|n| LETTERS.get(n % LETTERS.len()).map(|letter| char::from(*letter)))
            .collect();
        DispatchId::parse(&text).map_err(Error::corrupt("id"))
    }

    /// Whether its names and secrets are consented to: those of its command, and those of the phase that fetches its
    /// repository.
    async fn admit(
        &self,
        who: &Principal,
        request: &SandboxRequest,
        of: Option<&Repetition>,
    ) -> Result<()> {
        let exec = (Phase::Exec, &request.egress, &request.secrets);
        let build = request.build.as_ref();
        let build = build.map(|build| (Phase::Build, &build.egress, &build.secrets));
        let (mut wanted, mut uses) = (Vec::new(), Vec::new());
        for (phase, egress, secrets) in [Some(exec), build].into_iter().flatten() {
            let field = format!("sandbox_spec.phases.{}", phase.as_str());
            if let Egress::Names(entries) = egress {
                let asked = PhaseEntries { phase, entries };
                wanted.push(FieldEntries { field: format!("{field}.egress"), asked });
            }
            let of_phase = secrets.iter().enumerate();
            uses.extend(
                of_phase.map(|(at, used)| FieldSecret {
                    field: format!("{field}.secrets[{at}]"),
                    used,
                }),
            );
        }
        if !wanted.is_empty() {
            let first = of.and_then(|of| of.intent.as_ref()).map(|(intent, _)| intent);
            egress::admit_names(&self.ledger, who, first, &wanted).await?;
        }
        secrets::admit(&self.ledger, &who.tenant, &uses, who.is_host_admin()).await
    }

    async fn write(
        &self,
        who: &Principal,
        request: &SpawnRequest,
        checked: Option<&CheckedSpec>,
        id: &DispatchId,
        spawn_depth: i64,
        of: Option<&Repetition>,
    ) -> Result<()> {
        let model = match checked {
            Some(checked) => {
                model::chosen(&self.ledger, &who.tenant, request, &checked.spec).await?
            }
            None => None,
        };
        let mut work = work::work_of(id, request, checked, model.as_ref())?;
        let settings = config::settings(&self.ledger, &who.tenant).await?;
        settings.settle("the dispatch", &mut work.request)?;
        floor::admit(&self.ledger, &settings).await?;
        self.models.admit(&who.tenant, work.request.models().as_slice()).await?;
        programs::check(&work)?;
        self.quota.admit(&who.tenant).await?;
        self.admit(who, &work.request, of).await?;
        let canonical = checked.map(CheckedSpec::canonical).transpose()?;
        let start = Launch {
            who,
            key_id: of.and_then(|of| of.intent.as_ref()).map_or(&who.key_id, |(_, key)| key),
            subject: format!("dispatch-intent:{id}"),
            goal: request.name.clone().unwrap_or_else(|| format!("dispatch {id}")),
            work: &work,
            lane: if request.scheduled { Lane::Batch } else { Lane::Interactive },
        };
        let begun = work::RUN.start(&self.ids, start)?;
        let (intent, run) = (begun.intent(), &begun.run);
        let new = NewDispatch {
            id,
            request,
            prompt_hash: &prompt_hash(&request.prompt),
            spec: canonical.as_ref().map(|(text, hash)| (text.as_str(), hash)),
            spawn_depth,
            retry_of: of.map(|of| (&of.id, of.retry_count)),
            intent: &intent,
            run,
        };
        let retried = of
            .map(|of| audit(who, "dispatch.retry", of.id.as_str(), Some(json!({"dispatch": id}))));
        Ok(self.ledger.dispatches().spawn(&new, retried.as_ref()).await?)
    }
}

/// The column `prompt_hash` as other orchestrators write it: the first 16 hex digits of SHA-256.
fn prompt_hash(prompt: &str) -> String {
    digest_bytes(prompt.as_bytes()).as_str().chars().take(PROMPT_HASH).collect()
}

fn audit<'a>(who: &'a Principal, op: &'a str, target: &'a str, detail: Option<Value>) -> Audit<'a> {
    Audit { reason: "dispatch", detail, ..Audit::by(who, op, target) }
}
