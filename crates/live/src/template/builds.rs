//! Templates that tenants build: a sandbox runs the steps, and what it leaves is a snapshot with the rest of the template.
//!
//! ```text
//! open -> waiting; uploads; start: base, sandbox on record = building -> steps -> files kept -> program ready? -> ready
//! ```
//! **The files of a template are those before its program started**: each of its sandboxes starts it anew. They are on record
//! only after the program was ready once. The sandbox is killed then, as after a step that fails.

use cofferdam_ambient::own;

use cofferdam_ambient::clock::Stopwatch;
use cofferdam_ambient::random::secret_hex;
use cofferdam_contracts::error::{ErrorCode, Refusal};
use cofferdam_contracts::id::{BuildId, TemplateId, TemplateName};
use cofferdam_contracts::live::LiveRequest;
use cofferdam_contracts::sandbox::{Egress, IsolationClass, Limits, Phase};
use cofferdam_contracts::template_build::{
    BuildPlan, BuildSource, BuildState, BuildStatus, DEFAULT_TAG, MAX_BUILD_S,
};
use cofferdam_flows::{Error, Result, patiently};
use cofferdam_ledger::audit::Audit;
use cofferdam_ledger::builds::{Build, NewBuild};
use cofferdam_ledger::keys::Principal;

use crate::ids::fresh_letters;
use crate::live::Live;
use crate::message::Message;
use crate::refusal::{conflict, refuse};
use crate::snapshot::capture::SnapshotPurpose;
use crate::snapshot::eraser::Eraser;
use crate::snapshot::snapshots::Snapshots;
use crate::spec::{Source, Spec};
use crate::template::build::{Base, Builds, Contents, Work};
use crate::template::build_layers::{BaseLayer, Pace};
use crate::template::build_log::BuildLog;
use crate::template::build_steps::{Steps, line};
use crate::template::program::begin;
use crate::template::resolved_template::{BuildAssignment, BuildOutput, ResolvedTemplate};
use crate::template::templates::Templates;
use crate::template::uploads::Uploads;
use serde::{Deserialize, Serialize};

/// CPUs and MiB of a build's sandbox where its template says nothing, as of every sandbox of E2B's clients.
const CPUS: f64 = 2.0;
const MEM_MB: u64 = 512;
/// Steps that clients know by these names, beside the numbers of those of the user.
const BASE_STEP: &str = "base";
const LAST_STEP: &str = "finalize";
/// Label of the sandbox of a build, for who lists sandboxes.
const LABEL: &str = "templateBuild";

/// The request for a new build.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct BuildRequest {
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
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct BuildResponse {
    /// Template of that name, made now where the tenant had none.
    pub template: TemplateId,
    /// UUID of the build, which waits for [`StartBuild`].
    pub build: BuildId,
    /// Tags that the ready build gets, sorted and without duplicates.
    pub tags: Vec<String>,
}

/// Records a build that waits for its steps.
#[derive(Debug, Serialize, Deserialize)]
pub struct OpenBuild {
    /// Caller; the build belongs to the tenant of this key.
    pub who: Principal,
    /// What is asked for.
    pub asked: BuildRequest,
}

impl Message for OpenBuild {
    type Reply = BuildResponse;

    async fn answer(self, live: &Live) -> Result<Self::Reply> {
        Builds::of(live).open(&self.who, &self.asked).await
    }
}

/// A build of the caller's tenant.
#[derive(Debug, Serialize, Deserialize)]
pub struct ViewBuild {
    /// Caller; the build must belong to the tenant of this key.
    pub who: Principal,
    /// Template of the build; a build of another template is not found.
    pub template: TemplateId,
    /// UUID of the build, from [`BuildResponse`].
    pub build: BuildId,
}

impl Message for ViewBuild {
    type Reply = Build;

    async fn answer(self, live: &Live) -> Result<Self::Reply> {
        Builds::of(live).view(&self.who, &self.template, &self.build).await
    }
}

/// Deletes a template of the caller's tenant. Sandboxes that were made from it have copies of its files.
#[derive(Debug, Serialize, Deserialize)]
pub struct DeleteTemplate {
    /// Caller; the template must belong to the tenant of this key.
    pub who: Principal,
    /// Template to delete, refused while one of its builds runs.
    pub template: TemplateId,
}

impl Message for DeleteTemplate {
    type Reply = ();

    async fn answer(self, live: &Live) -> Result<Self::Reply> {
        Builds::of(live).delete(&self.who, &self.template).await
    }
}

/// Starts a build: answers once its sandbox is made, or the build has failed, which is on record.
#[derive(Debug, Serialize, Deserialize)]
pub struct StartBuild {
    /// Caller; the build must belong to the tenant of this key.
    pub who: Principal,
    /// Template of the build; only one of its builds runs at a time.
    pub template: TemplateId,
    /// Build to start, which must be `waiting`.
    pub build: BuildId,
    /// What it does.
    pub plan: BuildPlan,
    /// The weakest class that it may run in.
    pub class_min: Option<IsolationClass>,
}

impl Message for StartBuild {
    type Reply = ();

    async fn answer(self, live: &Live) -> Result<Self::Reply> {
        let Self { who, template, build, plan, class_min } = self;
        Builds::of(live).start(&who, &template, &build, plan, class_min).await
    }
}

/// Why a build failed, and at which step.
struct BuildFailure {
    step: String,
    why: String,
}

impl BuildFailure {
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

impl Builds {
    /// Records a build that waits for its steps.
    ///
    /// # Errors
    /// A name of the host's, or too many templates.
    async fn open(&self, who: &Principal, asked: &BuildRequest) -> Result<BuildResponse> {
        let is_hosts = Templates::of(&self.live).list()?.iter().any(|one| one.name == asked.name);
        if is_hosts || asked.name == crate::template::host::base_name()? {
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
        let template = self.live.0.ledger.builds().open(&new, &audit).await?;
        Ok(BuildResponse { template, build, tags })
    }

    /// A build of the caller's tenant.
    ///
    /// # Errors
    /// There is none.
    async fn view(&self, who: &Principal, template: &TemplateId, build: &BuildId) -> Result<Build> {
        let found = self.live.0.ledger.builds().build(&who.tenant, template, build).await?;
        Ok(found.ok_or_else(|| Refusal::not_found("build"))?)
    }

    /// Deletes a template of the caller's tenant. Sandboxes that were made from it have copies of its files.
    ///
    /// # Errors
    /// There is none, or a build of it runs.
    async fn delete(&self, who: &Principal, template: &TemplateId) -> Result<()> {
        let audit = Audit::by(who, "template.delete", template.as_str());
        self.live.0.ledger.builds().delete(template, &audit).await?;
        self.clean_up().await;
        Ok(())
    }

    /// Erases files of builds that no tag names any more, and uploads that nothing needs.
    pub(crate) async fn clean_up(&self) {
        if let Err(error) = self.live.0.ledger.builds().erase_untagged().await {
            tracing::warn!(%error, "files of builds that no tag names are not erased yet");
        }
        if let Err(error) = self.live.0.ledger.layers().erase_unneeded().await {
            tracing::warn!(%error, "layers of builds that are not needed are not erased yet");
        }
        Eraser::of(&self.live).clean_up().await;
        Uploads::of(&self.live).clean_up().await;
    }

    /// Starts a build: answers once its sandbox is made, or the build has failed, which is on record.
    ///
    /// # Errors
    /// There is no such build, it was started before, another one of its template runs, files of a step were not uploaded, or
    /// there is no room: then it can be started again.
    async fn start(
        &self,
        who: &Principal,
        template: &TemplateId,
        build: &BuildId,
        plan: BuildPlan,
        class_min: Option<IsolationClass>,
    ) -> Result<()> {
        let view = self.view(who, template, build).await?;
        self.live.0.registry.executor()?;
        if view.status != BuildStatus::Waiting {
            return Err(conflict(format!("the build is {} already", view.status.as_str())));
        }
        let mut contents = Contents::new();
        for hash in plan.uploads() {
            let found = Uploads::of(&self.live).find(&who.tenant, template, hash).await?;
            let found = found.ok_or_else(|| {
                let why = format!("the files {hash} of a COPY step were not uploaded");
                refuse(ErrorCode::PolicyViolation, why)
            })?;
            contents.insert(hash.clone(), found.content);
        }
        let base = match self.base(who, &plan, &view).await {
            Ok(base) => base,
            Err(Error::Refused(refusal)) if refusal.code != ErrorCode::Unavailable => {
                let why = own::hidden(&refusal.message).into_owned();
                self.live.0.ledger.builds().failed(build, &why, Some(BASE_STEP)).await?;
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        let egress = self.live.0.ledger.egress().policy_allowed(&who.tenant, Phase::Exec).await?;
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
        let Base { template: from, mut filling, mut state, start, ready, .. } = base;
        let usable = keys.get(..plan.cacheable).unwrap_or(&keys);
        let layer = self.layer_found(who, usable, from.image.as_ref()).await?;
        let cached = layer.as_ref().map_or(0, |layer| layer.steps);
        let tried = layer.as_ref().map(|layer| layer.id.clone());
        let mut building = BuildAssignment { id: build.clone(), layer: None };
        if let Some(BaseLayer { id, steps, state: left, filling: files }) = layer {
            state = left;
            filling = Some(files);
            building.layer = Some((id, steps));
        }
        let (live, asker, who, of) = (self.live.clone(), who.clone(), who.clone(), view.clone());
        let (image, mem_mb, cpu) = (from.image.clone(), from.mem_mb, from.cpu);
        let source = filling.map_or(Source::Template, Source::Snapshot);
        let spec = Spec::of(request, from, source);
        // It goes on where its caller hangs up.
        let made = crate::background::detached(async move {
            let held = live.launch_new(&who, spec, Some(building)).await?;
            let mem_mb = mem_mb.and_then(|mem_mb| u32::try_from(mem_mb).ok());
            let (template, name) = (of.template.clone(), of.name.clone());
            let built = BuildOutput { template, name, state, start, ready, cpu, mem_mb };
            let work = Work { who, build: of, held, plan, contents, image, built, keys, cached };
            tokio::spawn(async move { Builds::of(&live).work(work).await });
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
        match self.view(&asker, template, build).await?.status {
            BuildStatus::Waiting => Err(error),
            _ => Ok(()),
        }
    }

    /// What a build begins from.
    async fn base(&self, who: &Principal, plan: &BuildPlan, view: &Build) -> Result<Base> {
        let (found, filling, built, files) = match &plan.from {
            BuildSource::Template(text) => {
                match Templates::of(&self.live).named(who, text).await? {
                    Some(snapshot) => {
                        let (resume_spec, files) =
                            Snapshots::of(&self.live).open(&who.tenant, &snapshot).await?;
                        let template = Templates::of(&self.live).resolve(&resume_spec)?;
                        (template, Some(files.files_alone()), resume_spec.built, Some(snapshot))
                    }
                    None => (Templates::of(&self.live).host(&host_name(text)?)?, None, None, None),
                }
            }
            BuildSource::Image(text) => (Templates::of(&self.live).image(text)?, None, None, None),
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
        let template = ResolvedTemplate {
            name,
            image: found.image,
            cpu: view.cpu.or(found.cpu),
            mem_mb: view.mem_mb.map(u64::from).max(found.mem_mb),
            program: None,
            built: None,
        };
        Ok(Base { template, filling, files, state, start, ready })
    }

    /// Runs a build to its end, which is on record then, and ends its sandbox.
    async fn work(&self, work: Work) {
        let mut log = BuildLog::new(work.build.id.clone());
        if let Err(BuildFailure { step, why }) = self.run(&work, &mut log).await {
            log.enter(step.clone());
            log.say("error", &why);
            log.flush(&self.live).await;
            let why = own::hidden(&why).into_owned();
            let build = &work.build.id;
            if let Err(error) =
                patiently(|| self.live.0.ledger.builds().failed(build, &why, Some(&step))).await
            {
                // The end of its sandbox ends it on record too.
                tracing::warn!(%build, %error, "why a build failed is not on record");
            }
        }
        if let Err(error) = self.live.kill(&work.who, &work.held.facts.id).await {
            tracing::warn!(build = %work.build.id, %error, "the sandbox of a build did not end");
        }
        self.clean_up().await;
    }

    async fn run(&self, work: &Work, log: &mut BuildLog) -> Result<(), BuildFailure> {
        let Work { build, held, plan, .. } = work;
        log.say("info", &format!("building {} in the sandbox {}", build.name, held.facts.id));
        if let Err(why) = &held.snapshotter {
            return Err(BuildFailure { step: BASE_STEP.to_owned(), why: why.to_string() });
        }
        let mut steps = Steps {
            live: &self.live,
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
            ran.map_err(|why| BuildFailure { step: step_name, why })?;
            // After the last one the template's own files are the layer.
            if number < plan.steps.len()
                && let Some(bytes) = self.layer_due(work, &mut pace, &steps.state, number).await
            {
                steps.log.say("debug", &format!("layer kept: {bytes} bytes, sealed"));
            }
        }
        let state = steps.state;
        log.enter(LAST_STEP);
        let built = BuildOutput { state, ..work.built.clone() };
        let resume_spec = work.resume_spec(built.clone());
        let failed = |error: Error| BuildFailure::last(error.refusal().message);
        let kept = Snapshots::of(&self.live).snapshot(held, resume_spec).await.map_err(failed)?;
        if let Some(begins) = built.program() {
            log.say("info", "starting the program, and waiting until it is ready");
            log.flush(&self.live).await;
            // It ends with the sandbox.
            let program = begin(&held.agent, &begins, &held.env()).await;
            drop(program.map_err(BuildFailure::last)?);
        }
        log.say("info", &format!("ready: {} bytes of files, sealed", kept.bytes));
        log.flush(&self.live).await;
        let count = plan.steps.len();
        let key = count.checked_sub(1).and_then(|last| work.keys.get(last));
        let layer = key.map(|key| work.layer(key, count));
        let (name, template) = (build.name.as_str(), SnapshotPurpose::Template(&build.id, layer));
        Snapshots::of(&self.live)
            .record_as(&work.who, held, kept, Some(name), template)
            .await
            .map_err(failed)?;
        Ok(())
    }
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
