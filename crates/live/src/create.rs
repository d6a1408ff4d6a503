//! A new sandbox, from its request to its answer.

use std::sync::Arc;

use cofferdam_contracts::error::{ErrorCode, Refusal};
use cofferdam_contracts::id::TemplateName;
use cofferdam_contracts::live::LiveRequest;
use cofferdam_flows::Result;
use cofferdam_ledger::keys::Principal;

use crate::background::detached;
use crate::guest::handle::Guest;
use crate::handle::LiveHandle;
use crate::ids::fresh_live;
use crate::launch::LifeStart;
use crate::live::Live;
use crate::message::Message;
use crate::refusal::refuse;
use crate::snapshot::snapshots::Snapshots;
use crate::spec::{Source, Spec, checked};
use crate::template::resolved_template::BuildAssignment;
use crate::template::templates::Templates;
use crate::wait::Start;
use serde::{Deserialize, Serialize};

/// Creates a sandbox and waits until it answers. One that was created before with the same `dedup` is given instead.
#[derive(Debug, Serialize, Deserialize)]
pub struct CreateSandbox {
    /// Caller; the sandbox belongs to the tenant of this key.
    pub who: Principal,
    /// What is asked for.
    pub request: LiveRequest,
}

impl Message for CreateSandbox {
    type Reply = Guest;

    async fn answer(self, live: &Live) -> Result<Self::Reply> {
        let held = live.create(&self.who, &self.request).await?;
        Ok(Guest::of(live, &held))
    }
}

impl Live {
    /// Creates a sandbox and waits until it answers. One that was created before with the same `dedup` is given instead.
    /// It goes on where its caller hangs up: who repeats the request finds what it made.
    ///
    /// # Errors
    /// A request out of bounds, names without a grant, no room in time, or another request with the same `dedup`.
    async fn create(&self, who: &Principal, request: &LiveRequest) -> Result<Arc<LiveHandle>> {
        if request.resume_on_traffic && !request.pause_on_timeout {
            let why = "resumeOnTraffic needs pauseOnTimeout: only a sandbox that its time pauses waits for requests";
            return Err(refuse(ErrorCode::PolicyViolation, why));
        }
        let (live, who, request) = (self.clone(), who.clone(), request.clone());
        let held = detached(async move {
            let held = Create { live: &live, who: &who, request: &request }.done().await?;
            Ok((held, request))
        });
        let (held, request) = held.await?;
        match held.asked == request {
            true => Ok(held),
            false => Err(refuse(
                ErrorCode::StateConflict,
                "another sandbox was asked for with this Idempotency-Key; use a new one",
            )),
        }
    }

    /// A new one of this specification; `build`: the build of a template that it is for.
    pub(crate) async fn launch_new(
        &self,
        who: &Principal,
        spec: Spec,
        build: Option<BuildAssignment>,
    ) -> Result<Arc<LiveHandle>> {
        let id = fresh_live()?;
        self.launch(who, &id, async { Ok(spec) }, LifeStart::First { build }).await
    }
}

struct Create<'a> {
    live: &'a Live,
    who: &'a Principal,
    request: &'a LiveRequest,
}

impl Create<'_> {
    /// The one that was created before with this request's `dedup`, or a new one.
    async fn done(&self) -> Result<Arc<LiveHandle>> {
        let (name, _) = checked(self.request)?;
        self.live.0.registry.executor()?;
        if let Some(found) = self.repeated().await? {
            return Ok(found);
        }
        let id = fresh_live()?;
        let spec = self.spec(&name);
        match self.live.launch(self.who, &id, spec, LifeStart::First { build: None }).await {
            Err(error) if self.request.dedup.is_some() && error.is_unique_violation() => {
                let found = self.repeated().await?;
                found.ok_or_else(|| Refusal::not_found("sandbox").into())
            }
            launched => launched,
        }
    }

    /// The sandbox that the tenant created with this `dedup` before, once it is up.
    async fn repeated(&self) -> Result<Option<Arc<LiveHandle>>> {
        let Some(dedup) = &self.request.dedup else { return Ok(None) };
        match self.live.0.ledger.live().by_dedup(&self.who.tenant, dedup).await? {
            Some(found) => {
                let (live, who) = (self.live, self.who);
                Start { live, who, id: &found.id, run: &found.run_id }.up().await.map(Some)
            }
            None => Ok(None),
        }
    }

    /// What a request names: a snapshot, a template that its tenant built, or one of this host.
    async fn spec(&self, name: &TemplateName) -> Result<Spec> {
        let (who, request) = (self.who, self.request);
        let files = match &request.snapshot {
            Some(snapshot) => Some(snapshot.clone()),
            None => Templates::of(self.live).named(who, name.as_str()).await?,
        };
        let Some(files) = files else {
            let template = Templates::of(self.live).host(name)?;
            return Ok(Spec::of(request.clone(), template, Source::Template));
        };
        let (resume_spec, files) = Snapshots::of(self.live).open(&who.tenant, &files).await?;
        let source = Source::Snapshot(files.files_alone());
        let mut spec =
            Spec::of(request.clone(), Templates::of(self.live).resolve(&resume_spec)?, source);
        if request.snapshot.is_some() {
            spec.inherited = resume_spec.request.env;
        }
        Ok(spec)
    }
}
