//! What goes: erasures by hand, and the collection of what retention leaves no room for.
//!
//! ```text
//! gc: tenants by name: due? -> batches, oldest first -> stale bases -> keys of pauses -> stored files and objects without a run
//!     files of the artifact store go behind the commit that destroyed their keys
//!     a request works for about two seconds and says where to go on; the database knows what is done
//! ```
//! A collection that is cut off anywhere begins again: what is erased is not found again. **A run or tenant that fails is left out and
//! named; the others go on.**

use std::time::Duration;

use cofferdam_ambient::clock::Stopwatch;
use cofferdam_contracts::config::{ConfigKey, value_of};
use cofferdam_contracts::id::{RunId, SecretName, TenantId};
use cofferdam_contracts::retention::{
    EraseRequest, ErasureTotals, GcFailure, GcPosition, GcPreview, GcRequest, GcStep, Retention,
    StorageReport, TenantStorage,
};
use cofferdam_ledger::Ledger;
use cofferdam_ledger::audit::Audit;
use cofferdam_ledger::keys::Principal;

use crate::error::{Error, Result};
use crate::objects::Objects;
use crate::tree_uploads::Uploads;

/// How long one request of a collection works, and then removes files: a person sees that it goes on, and a proxy does not give up.
const TURN: Duration = Duration::from_secs(2);
/// A base without a use for so long is given up, as its own host would.
const STALE_MS: i64 = 14 * 24 * 3_600_000;

/// Erasures and retention of this installation's tenants.
#[derive(Debug, Clone)]
pub struct Retentions {
    ledger: Ledger,
    objects: Objects,
    uploads: Uploads,
}

impl Retentions {
    pub(crate) fn new(ledger: &Ledger, objects: &Objects, uploads: &Uploads) -> Self {
        Self { ledger: ledger.clone(), objects: objects.clone(), uploads: uploads.clone() }
    }

    /// Erases a content of a run of the caller's tenant.
    ///
    /// # Errors
    /// The content is gone already, a run is not at rest, or the ledger does not answer.
    pub async fn erase(
        &self,
        who: &Principal,
        run: &RunId,
        request: &EraseRequest,
    ) -> Result<ErasureTotals> {
        let op = format!("erase.{}", request.content.as_str());
        let audit = Audit { reason: &request.why, ..Audit::by(who, &op, run.as_str()) };
        let erased = self.ledger.erasures().erase(run, request.content, &audit).await?;
        self.objects.clear_within(TURN).await;
        Ok(erased)
    }

    /// Erases a secret of the caller's tenant.
    ///
    /// # Errors
    /// There is none, it is gone already, or the ledger does not answer.
    pub async fn erase_secret(
        &self,
        who: &Principal,
        name: &SecretName,
        why: &str,
    ) -> Result<ErasureTotals> {
        let audit = Audit { reason: why, ..Audit::by(who, "erase.secret", name.as_str()) };
        Ok(self.ledger.erasures().erase_secret(&who.tenant, name, &audit).await?)
    }

    /// Who uses what: the caller's tenant; for the host's admin all of them that use something.
    ///
    /// # Errors
    /// The ledger does not answer, or what was sent to this server cannot be read.
    pub async fn storage(&self, who: &Principal) -> Result<StorageReport> {
        let own = (!who.is_host_admin()).then_some(&who.tenant);
        let mut report = self.ledger.erasures().storage(own).await?;
        let tenants = report.tenants.iter().map(|of| of.tenant.clone()).collect();
        let sent = self.uploads.usage(tenants).await?;
        for (of, sent) in report.tenants.iter_mut().zip(sent) {
            of.sent = sent;
        }
        report.tenants.retain(uses_something);
        Ok(report)
    }

    /// What a collection would take now.
    ///
    /// # Errors
    /// The ledger does not answer, or a rule does not hold together.
    pub async fn preview(&self, who: &Principal) -> Result<GcPreview> {
        let erasures = self.ledger.erasures();
        let mut due = Vec::new();
        for tenant in self.tenants(who).await? {
            let rules = self.rules(&tenant).await?;
            if !rules.is_unlimited() {
                let until = erasures.due(&tenant, &rules).await?;
                due.push(erasures.due_totals(&tenant, rules, until).await?);
            }
        }
        let blobs = match who.is_host_admin() {
            true => erasures.blobs_unreferenced().await?,
            false => Default::default(),
        };
        Ok(GcPreview { schema_version: 1, due, blobs: blobs.count, blob_bytes: blobs.bytes })
    }

    /// Collects for about two seconds.
    ///
    /// # Errors
    /// The ledger does not answer, or a rule does not hold together.
    pub async fn collect(&self, who: &Principal, request: &GcRequest) -> Result<GcStep> {
        let step = self.collected(who, request).await?;
        self.objects.clear_within(TURN).await;
        Ok(step)
    }

    async fn collected(&self, who: &Principal, request: &GcRequest) -> Result<GcStep> {
        let begun = Stopwatch::start();
        let mut step =
            GcStep { erased: ErasureTotals::default(), bases: 0, next: None, failed: Vec::new() };
        let mut at = request.from.clone();
        if at.as_ref().is_none_or(|at| at.tenant.is_some()) {
            for tenant in self.tenants(who).await? {
                let from = at.take_if(|at| at.tenant.as_ref() == Some(&tenant));
                // Those before the one to go on with are done.
                if at.as_ref().and_then(|at| at.tenant.as_ref()).is_some_and(|next| tenant < *next)
                {
                    continue;
                }
                let after = from.and_then(|from| from.after);
                match self.collect_tenant(who, &tenant, after, &begun, &mut step).await {
                    Ok(None) => {}
                    Ok(next) => {
                        step.next = next;
                        return Ok(step);
                    }
                    Err(Error::Ledger(lost)) if lost.is_lost() => return Err(lost.into()),
                    Err(error) => step.failed.push(failure(&tenant, None, error)),
                }
            }
            at = None;
        }
        if who.is_host_admin() {
            self.ledger.snapshots().erase_unneeded().await?;
            let after = at.and_then(|at| at.after);
            step.next = self.collect_blobs(after, &begun, &mut step).await?;
            if step.next.is_none() {
                let objects = self.ledger.erasures().collect_objects().await?;
                step.erased.blobs = step.erased.blobs.saturating_add(objects);
            }
        }
        Ok(step)
    }

    /// Runs of a tenant that are due, then its stale bases; where to go on.
    async fn collect_tenant(
        &self,
        who: &Principal,
        tenant: &TenantId,
        after: Option<String>,
        begun: &Stopwatch,
        step: &mut GcStep,
    ) -> Result<Option<GcPosition>> {
        let next = self.collect_runs(who, tenant, after, begun, step).await?;
        if next.is_none() {
            step.bases = step.bases.saturating_add(self.stale_bases(who, tenant).await?);
        }
        Ok(next)
    }

    /// Tenants that the caller's collection is about.
    async fn tenants(&self, who: &Principal) -> Result<Vec<TenantId>> {
        match who.is_host_admin() {
            true => Ok(self.ledger.erasures().tenants().await?),
            false => Ok(vec![who.tenant.clone()]),
        }
    }

    /// The retention in force of a tenant.
    async fn rules(&self, tenant: &TenantId) -> Result<Retention> {
        let rows = self.ledger.config().rows(tenant).await?;
        serde_json::from_value(value_of(ConfigKey::Retention, &rows))
            .map_err(Error::corrupt("dynamic_config.value"))
    }

    async fn collect_runs(
        &self,
        who: &Principal,
        tenant: &TenantId,
        mut after: Option<String>,
        begun: &Stopwatch,
        step: &mut GcStep,
    ) -> Result<Option<GcPosition>> {
        let rules = self.rules(tenant).await?;
        let erasures = self.ledger.erasures();
        let Some(due) = erasures.due(tenant, &rules).await? else { return Ok(None) };
        let rule = serde_json::to_string(&rules).map_err(Error::corrupt("retention"))?;
        let rule = format!("retention {rule}");
        loop {
            let batch =
                erasures.collect_runs(tenant, &due, after.as_deref(), &who.key_id, &rule).await?;
            step.erased = step.erased.plus(batch.erased);
            for (run, error) in batch.failed {
                let run = RunId::parse(&run).map_err(Error::corrupt("runs.id"))?;
                step.failed.push(failure(tenant, Some(run), error.into()));
            }
            let Some(last) = batch.last else { return Ok(None) };
            after = Some(last);
            // A page of failures is the most that one answer names.
            if begun.elapsed() > TURN || !step.failed.is_empty() {
                return Ok(Some(GcPosition { tenant: Some(tenant.clone()), after }));
            }
        }
    }

    async fn collect_blobs(
        &self,
        mut after: Option<String>,
        begun: &Stopwatch,
        step: &mut GcStep,
    ) -> Result<Option<GcPosition>> {
        loop {
            let page = self.ledger.erasures().collect_blobs(after.as_deref()).await?;
            step.erased = step.erased.plus(page.erased);
            let Some(last) = page.last else { return Ok(None) };
            after = Some(last);
            if begun.elapsed() > TURN {
                return Ok(Some(GcPosition { tenant: None, after }));
            }
        }
    }

    async fn stale_bases(&self, who: &Principal, tenant: &TenantId) -> Result<u64> {
        let audit = Audit { tenant, ..Audit::by(who, "cache.evict", "unused for 14 days") };
        Ok(self.ledger.cache().doom(tenant, None, STALE_MS, &audit).await?)
    }
}

/// Whether a tenant has more than a key. Pure.
fn uses_something(of: &TenantStorage) -> bool {
    let counts = [of.runs, of.artifacts.count, of.cache.count, of.pauses.count, of.trees.count];
    counts.into_iter().chain([of.sent.bytes, of.quota_bytes]).any(|count| count > 0)
}

/// For the caller its code's message, for the log the cause.
fn failure(tenant: &TenantId, run: Option<RunId>, error: Error) -> GcFailure {
    tracing::warn!(%tenant, run = run.as_ref().map(RunId::as_str), ?error, "a collection left out what it could not erase");
    GcFailure { tenant: tenant.clone(), run, why: error.refusal().message }
}
