//! Templates that tenants build: a sandbox runs the steps, and what it leaves is a snapshot with the rest of the template.
//!
//! ```text
//! open -> waiting; uploads; start: base, sandbox on record = building -> steps -> files kept -> program ready? -> ready
//! ```
//! **The files of a template are those before its program started**: each of its sandboxes starts it anew. They are on record
//! only after the program was ready once. The sandbox is killed then, as after a step that fails.

use cofferdam_ambient::own;
use std::collections::BTreeMap;
use std::sync::Arc;

use cofferdam_ambient::clock::Stopwatch;
use cofferdam_ambient::random::secret_hex;
use cofferdam_contracts::error::{ErrorCode, Refusal};
use cofferdam_contracts::id::{BuildId, Digest, SnapshotId, TemplateId, TemplateName};
use cofferdam_contracts::live::LiveRequest;
use cofferdam_contracts::sandbox::{Egress, IsolationClass, Limits, Phase};
use cofferdam_contracts::template_build::{
    BuildFrom, BuildPlan, BuildState, BuildStatus, DEFAULT_TAG, MAX_BUILD_S, tagged,
};
use cofferdam_ledger::audit::Audit;
use cofferdam_ledger::builds::{Build, NewBuild};
use cofferdam_ledger::keys::Principal;

use super::basis::{Basis, Building, Built, Ground};
use super::begin::begin;
use super::build_layers::{Contents, FoundLayer, Pace};
use super::build_log::BuildLog;
use super::build_steps::{Steps, line};
use super::kept::{SealedAs, conflict};
use super::registry::Held;
use super::{fresh_letters, refuse};
use crate::Flows;
use crate::error::{Error, Result};
use crate::patience::patiently;

/// CPUs and MiB of a build's sandbox where its template says nothing, as of every sandbox of E2B's clients.
const CPUS: f64 = 2.0;
const MEM_MB: u64 = 512;
/// Steps that clients know by these names, beside the numbers of those of the user.
const BASE_STEP: &str = "base";
const LAST_STEP: &str = "finalize";
/// Label of the sandbox of a build, for who lists sandboxes.
const LABEL: &str = "templateBuild";

/// What a build is asked for with.
#[derive(Debug, Clone)]
pub struct BuildAsked {
    /// The template's name.
    pub name: TemplateName,
    /// Tags that it gets once it is ready; none: [`DEFAULT_TAG`].
    pub tags: Vec<String>,
    /// CPUs of its sandboxes.
    pub cpu: Option<u32>,
    /// Memory of its sandboxes in MiB.
    pub mem_mb: Option<u32>,
}

/// A build that was opened.
#[derive(Debug, Clone)]
pub struct BuildOpened {
    /// The template.
    pub template: TemplateId,
    /// The build.
    pub build: BuildId,
    /// Its tags.
    pub tags: Vec<String>,
}

/// What a build begins from.
pub(super) struct Base {
    pub ground: Ground,
    /// The files of the tenant's template that it is.
    pub files: Option<SnapshotId>,
    pub state: BuildState,
    start: Option<String>,
    ready: Option<String>,
}

/// Why a build failed, and at which step.
struct Failed {
    step: String,
    why: String,
}

impl Failed {
    fn last(why: impl Into<String>) -> Self {
        Self { step: LAST_STEP.to_owned(), why: why.into() }
    }
}

/// A name in the form of a UUID, of 128 random bits.
fn fresh_build() -> Result<BuildId> {
    let hex = secret_hex(16);
    let part = |from: usize, to: usize| hex.get(from..to).unwrap_or_default();
    let (a, b, c, d, e) = (part(0, 8), part(8, 12), part(12, 16), part(16, 20), part(20, 32));
    BuildId::parse(&format!("{a}-{b}-{c}-{d}-{e}")).map_err(Error::corrupt("id"))
}

impl Flows {
    /// Records a build that waits for its steps.
    ///
    /// # Errors
    /// A name of the host's, or too many templates.
    pub async fn build_open(&self, who: &Principal, asked: &BuildAsked) -> Result<BuildOpened> {
        let is_hosts = self.live_templates()?.iter().any(|one| one.name == asked.name);
        if is_hosts || asked.name == super::templates::base_name()? {
            let why = format!("{} is a template of the host: choose another name", asked.name);
            return Err(conflict(why));
        }
        let template = TemplateId::parse(&fresh_letters()).map_err(Error::corrupt("id"))?;
        let build = fresh_build()?;
        let mut tags = asked.tags.clone();
        if tags.is_empty() {
            tags.push(DEFAULT_TAG.to_owned());
        }
        tags.sort_unstable();
        tags.dedup();
        let new = NewBuild {
            id: &build,
            template: &template,
            name: &asked.name,
            tags: &tags,
            cpu: asked.cpu,
            mem_mb: asked.mem_mb,
        };
        let audit = Audit::by(who, "template.build", build.as_str());
        let template = self.ledger.builds().open(&new, &audit).await?;
        Ok(BuildOpened { template, build, tags })
    }

    /// A build of the caller's tenant.
    ///
    /// # Errors
    /// There is none.
    pub async fn build_view(
        &self,
        who: &Principal,
        template: &TemplateId,
        build: &BuildId,
    ) -> Result<Build> {
        let found = self.ledger.builds().build(&who.tenant, template, build).await?;
        Ok(found.ok_or_else(|| Refusal::not_found("build"))?)
    }

    /// The files of the ready build that `ID`, `NAME`, `ID:TAG` or `NAME:TAG` names among the tenant's templates; `None`: it
    /// names none of these.
    ///
    /// # Errors
    /// The template is there, and the tag names no build that is ready.
    pub async fn template_named(&self, who: &Principal, text: &str) -> Result<Option<SnapshotId>> {
        let Ok((name, tag)) = tagged(text) else { return Ok(None) };
        // No tenant has this name, and most creations ask for it.
        if name == super::templates::base_name()? {
            return Ok(None);
        }
        let rows = self.ledger.builds();
        let Some((template, _)) = rows.template(&who.tenant, name.as_str()).await? else {
            return Ok(None);
        };
        let tag = tag.as_deref().unwrap_or(DEFAULT_TAG);
        let build = rows.tagged(&who.tenant, &template, tag).await?;
        match build.and_then(|build| build.snapshot) {
            Some(snapshot) => Ok(Some(snapshot)),
            None => {
                // E2B's words, by which programs such as harbor wait for a build of another process.
                let why = format!(
                    "tag '{tag}' does not exist for template '{name}', or its build is not ready"
                );
                Err(refuse(ErrorCode::NotFound, why))
            }
        }
    }

    /// Deletes a template of the caller's tenant. Sandboxes that were made from it have copies of its files.
    ///
    /// # Errors
    /// There is none, or a build of it runs.
    pub async fn template_delete(&self, who: &Principal, template: &TemplateId) -> Result<()> {
        let audit = Audit::by(who, "template.delete", template.as_str());
        self.ledger.builds().delete(template, &audit).await?;
        self.templates_tidy().await;
        Ok(())
    }

    /// Erases files of builds that no tag names any more, and uploads that nothing needs.
    pub async fn templates_tidy(&self) {
        if let Err(error) = self.ledger.builds().erase_untagged().await {
            tracing::warn!(%error, "files of builds that no tag names are not erased yet");
        }
        if let Err(error) = self.ledger.layers().erase_unneeded().await {
            tracing::warn!(%error, "layers of builds that are not needed are not erased yet");
        }
        self.snapshots_tidy().await;
        self.uploads_tidy().await;
    }

    /// Starts a build: answers once its sandbox is made, or the build has failed, which is on record.
    ///
    /// # Errors
    /// There is no such build, it was started before, another one of its template runs, files of a step were not uploaded, or
    /// there is no room: then it can be started again.
    pub async fn build_start(
        &self,
        who: &Principal,
        template: &TemplateId,
        build: &BuildId,
        plan: BuildPlan,
        class_min: Option<IsolationClass>,
    ) -> Result<()> {
        let view = self.build_view(who, template, build).await?;
        self.live_asked()?;
        if view.status != BuildStatus::Waiting {
            return Err(conflict(format!("the build is {} already", view.status.as_str())));
        }
        let mut contents = Contents::new();
        for hash in plan.uploads() {
            let found = self.upload_found(&who.tenant, template, hash).await?;
            let found = found.ok_or_else(|| {
                let why = format!("the files {hash} of a COPY step were not uploaded");
                refuse(ErrorCode::PolicyViolation, why)
            })?;
            contents.insert(hash.clone(), found.content);
        }
        let base = match self.build_base(who, &plan, &view).await {
            Ok(base) => base,
            Err(Error::Refused(refusal)) if refusal.code != ErrorCode::Unavailable => {
                let why = own::hidden(&refusal.message).into_owned();
                self.ledger.builds().failed(build, &why, Some(BASE_STEP)).await?;
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        let egress = self.ledger.egress().policy_allowed(&who.tenant, Phase::Exec).await?;
        let entries = egress.map(|policy| policy.entries).unwrap_or_default();
        let request = LiveRequest {
            timeout_s: Some(MAX_BUILD_S),
            metadata: [(LABEL.to_owned(), build.to_string())].into(),
            egress: if entries.is_empty() { Egress::None } else { Egress::Names(entries) },
            limits: Limits { cpu: Some(CPUS), mem_mb: Some(MEM_MB), ..Limits::default() },
            class_min,
            ..LiveRequest::of(template.as_str())
        };
        let keys = self.layer_keys(who, &base, &request, &plan.steps, &contents).await?;
        let Base { mut ground, mut state, start, ready, .. } = base;
        let usable = keys.get(..plan.cacheable).unwrap_or(&keys);
        let layer = self.layer_found(who, usable, ground.basis.image.as_ref()).await?;
        let cached = layer.as_ref().map_or(0, |layer| layer.steps);
        let tried = layer.as_ref().map(|layer| layer.id.clone());
        let mut building = Building { id: build.clone(), layer: None };
        if let Some(FoundLayer { id, steps, state: left, filling }) = layer {
            state = left;
            ground.filling = Some(filling);
            building.layer = Some((id, steps));
        }
        ground.build = Some(building);
        let (flows, asker, who, of) = (self.clone(), who.clone(), who.clone(), view.clone());
        let (image, mem_mb) = (ground.basis.image.clone(), ground.basis.mem_mb);
        let cpu = ground.basis.cpu;
        // It goes on where its caller hangs up.
        let made = super::detached(async move {
            let held = flows.live_make(&who, &request, Some(ground)).await?;
            let mem_mb = mem_mb.and_then(|mem_mb| u32::try_from(mem_mb).ok());
            let (template, name) = (of.template.clone(), of.name.clone());
            let built = Built { template, name, state, start, ready, cpu, mem_mb };
            let work = Work { who, build: of, held, plan, contents, image, built, keys, cached };
            tokio::spawn(async move { flows.build_work(work).await });
            Ok(())
        });
        let Err(error) = made.await else { return Ok(()) };
        // Its files may be damaged where only their reader sees it. Without room it is as good as before.
        if let (Some(layer), Error::Refused(refusal)) = (&tried, &error)
            && refusal.code == ErrorCode::PolicyViolation
        {
            self.layer_spoiled(layer).await;
        }
        if matches!(&error, Error::Refused(refusal) if refusal.code == ErrorCode::StateConflict) {
            return Err(error);
        }
        // Once its sandbox is on record the build's end is too, and its followers read that.
        match self.build_view(&asker, template, build).await?.status {
            BuildStatus::Waiting => Err(error),
            _ => Ok(()),
        }
    }

    /// What a build begins from.
    async fn build_base(&self, who: &Principal, plan: &BuildPlan, view: &Build) -> Result<Base> {
        let (found, filling, built, files) = match &plan.from {
            BuildFrom::Template(text) => match self.template_named(who, text).await? {
                Some(snapshot) => {
                    let (again, files) = self.live_opened(&who.tenant, &snapshot).await?;
                    let basis = self.basis_again(&again)?;
                    (basis, Some(files.files_alone()), again.built, Some(snapshot))
                }
                None => (self.host_basis(&host_name(text)?)?, None, None, None),
            },
            BuildFrom::Image(text) => (self.image_basis(text)?, None, None, None),
        };
        let (state, start, ready) = match (built, found.program) {
            (Some(built), _) => (built.state, built.start, built.ready),
            (None, Some(begins)) => (begins.state, begins.start, begins.ready),
            (None, None) => (BuildState::default(), None, None),
        };
        // Commands of its own stand in place of both.
        let (start, ready) = match (&plan.start, &plan.ready) {
            (None, None) => (start, ready),
            _ => (plan.start.clone(), plan.ready.clone()),
        };
        let name =
            TemplateName::parse(view.template.as_str()).map_err(Error::corrupt("template"))?;
        let basis = Basis {
            name,
            image: found.image,
            cpu: view.cpu.or(found.cpu),
            mem_mb: view.mem_mb.map(u64::from).max(found.mem_mb),
            program: None,
            built: None,
        };
        let ground = Ground { basis, filling, inherited: BTreeMap::new(), build: None };
        Ok(Base { ground, files, state, start, ready })
    }

    /// Runs a build to its end, which is on record then, and ends its sandbox.
    async fn build_work(&self, work: Work) {
        let mut log = BuildLog::new(work.build.id.clone());
        if let Err(Failed { step, why }) = self.build_run(&work, &mut log).await {
            log.enter(step.clone());
            log.say("error", &why);
            log.flush(self).await;
            let why = own::hidden(&why).into_owned();
            let build = &work.build.id;
            if let Err(error) =
                patiently(|| self.ledger.builds().failed(build, &why, Some(&step))).await
            {
                // The end of its sandbox ends it on record too.
                tracing::warn!(%build, %error, "why a build failed is not on record");
            }
        }
        if let Err(error) = self.live_kill(&work.who, &work.held.id).await {
            tracing::warn!(build = %work.build.id, %error, "the sandbox of a build did not end");
        }
        self.templates_tidy().await;
    }

    async fn build_run(&self, work: &Work, log: &mut BuildLog) -> Result<(), Failed> {
        let Work { build, held, plan, .. } = work;
        log.say("info", &format!("building {} in the sandbox {}", build.name, held.id));
        if let Err(why) = &held.keeper {
            return Err(Failed { step: BASE_STEP.to_owned(), why: why.to_string() });
        }
        let mut steps = Steps {
            flows: self,
            held,
            template: &build.template,
            contents: &work.contents,
            state: work.built.state.clone(),
            log,
            since: Stopwatch::start(),
        };
        let mut pace = Pace::new();
        for (step, number) in plan.steps.iter().zip(1usize..) {
            let step_name = number.to_string();
            steps.log.enter(step_name.clone());
            if number <= work.cached {
                steps.log.say("info", &format!("CACHED {}", line(step)));
                continue;
            }
            let ran = steps.run(step).await;
            ran.map_err(|why| Failed { step: step_name, why })?;
            // After the last one the template's own files are the layer.
            if number < plan.steps.len()
                && let Some(bytes) = self.layer_due(work, &mut pace, &steps.state, number).await
            {
                steps.log.say("debug", &format!("layer kept: {bytes} bytes, sealed"));
            }
        }
        let state = steps.state;
        log.enter(LAST_STEP);
        let built = Built { state, ..work.built.clone() };
        let again = work.again(built.clone());
        let failed = |error: Error| Failed::last(error.refusal().message);
        let kept = self.keep_and_go_on(held, again).await.map_err(failed)?;
        if let Some(begins) = built.program() {
            log.say("info", "starting the program, and waiting until it is ready");
            log.flush(self).await;
            // It ends with the sandbox.
            let program = begin(&held.agent, &begins, &held.env()).await;
            drop(program.map_err(Failed::last)?);
        }
        log.say("info", &format!("ready: {} bytes of files, sealed", kept.bytes));
        log.flush(self).await;
        let count = plan.steps.len();
        let key = count.checked_sub(1).and_then(|last| work.keys.get(last));
        let layer = key.map(|key| work.layer(key, count));
        let (name, template) = (build.name.as_str(), SealedAs::Template(&build.id, layer));
        self.keep_as(&work.who, held, kept, Some(name), template).await.map_err(failed)?;
        Ok(())
    }
}

/// A build whose sandbox is up.
pub(super) struct Work {
    pub who: Principal,
    pub build: Build,
    pub held: Arc<Held>,
    plan: BuildPlan,
    /// What its keys say that its files are.
    contents: Contents,
    pub image: Option<String>,
    pub built: Built,
    /// Keys of its steps, as far as they have one.
    pub keys: Vec<Digest>,
    /// Steps that its files had behind them when it began.
    cached: usize,
}

/// A template of the host, by what a client calls it.
fn host_name(text: &str) -> Result<TemplateName> {
    let name = text.split_once(':').map_or(text, |(name, _)| name);
    TemplateName::parse(name).map_err(|why| refuse(ErrorCode::PolicyViolation, why.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_build_has_an_id_that_clients_parse() {
        let (one, other) = (fresh_build().unwrap(), fresh_build().unwrap());
        assert_ne!(one, other);
        assert_eq!(one.as_str().len(), 36);
    }
}
