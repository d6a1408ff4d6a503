//! The one way by which a sandbox is launched: created, resumed, forked, or made for a build.
//!
//! ```text
//! spec -> admitted -> made early, where there is room -> pending -> intent, run, task and life on record -> waited for
//! ```

use std::sync::Arc;

use cofferdam_ambient::random::secret_hex;
use cofferdam_contracts::id::{LiveId, SnapshotId};
use cofferdam_contracts::live::LiveRequest;
use cofferdam_contracts::recipe::Lane;
use cofferdam_contracts::sandbox::Egress;
use cofferdam_flows::static_recipe::{LIVE, Launch};
use cofferdam_flows::{Result, config, egress, floor};
use cofferdam_ledger::audit::Audit;
use cofferdam_ledger::failpoint::fail_point;
use cofferdam_ledger::keys::Principal;
use cofferdam_ledger::live_start::{LifeRecord, NewLife, NewLive, NextLife};
use cofferdam_ledger::{Ledger, OpResult};
use serde_json::json;

use crate::handle::LiveHandle;
use crate::live::Live;
use crate::pending_launch::PendingLaunch;
use crate::spec::{Spec, checked};
use crate::template::resolved_template::BuildAssignment;
use crate::wait::Start;
use crate::work;

/// Which life of a sandbox is launched.
#[derive(Debug)]
pub(crate) enum LifeStart<'a> {
    /// Its first one.
    First {
        /// The build of a template that it is for.
        build: Option<BuildAssignment>,
    },
    /// The one after a pause.
    Next {
        /// What it was paused into.
        snapshot: &'a SnapshotId,
        /// Whether a request to the sandbox resumes it.
        by_traffic: bool,
    },
}

impl Live {
    /// Launches a life and waits until it answers. Admission is looked up while its specification is made.
    ///
    /// # Errors
    /// Those of its specification; names without a grant, a full quota, no room in time, or its life is not recorded.
    pub(crate) async fn launch(
        &self,
        who: &Principal,
        id: &LiveId,
        spec: impl Future<Output = Result<Spec>>,
        life: LifeStart<'_>,
    ) -> Result<Arc<LiveHandle>> {
        let executor = self.0.registry.executor()?;
        let ledger = &self.0.ledger;
        let (spec, settings, quota) = tokio::join!(
            spec,
            config::settings(ledger, &who.tenant),
            self.0.flows.quota.admit(&who.tenant),
        );
        let Spec { request, template, inherited, source, tokens } = spec?;
        let (_, timeout_s) = checked(&request)?;
        let mut sandbox = work::request(&request, &template);
        let settings = settings?;
        settings.settle("the sandbox", &mut sandbox)?;
        floor::admit(ledger, &settings).await?;
        quota?;
        egress::admit_live(ledger, who, &sandbox.egress).await?;
        let egress = sandbox.egress.clone();
        let files = self.0.registry.make_early(&who.tenant, &sandbox, source.into());
        let work = work::of(id, sandbox);
        let (subject, goal) = match &life {
            LifeStart::First { .. } => (format!("live:{id}"), format!("sandbox {id}")),
            // Each life has a run of its own, also one that does not begin.
            LifeStart::Next { .. } => {
                (format!("live:{id}:{}", secret_hex(8)), format!("sandbox {id}, resumed"))
            }
        };
        let (key_id, lane) = (who.key_id.as_str(), Lane::Interactive);
        let start = Launch { who, key_id, subject, goal, work: &work, lane };
        let begun = LIVE.start(&self.0.flows.ids, start)?;
        let first = LIVE.first_round(&begun, work)?;
        let (intent, run, opening) = (begun.intent(), &begun.run, first.opening());
        let one = PendingLaunch {
            tenant: who.tenant.clone(),
            key_id: who.key_id.clone(),
            request: request.clone(),
            template: template.clone(),
            inherited,
            files,
            tokens,
        };
        // Before the commit, so that a worker of this process finds it; and no longer than somebody waits for it.
        let _expecting = self.0.registry.expect(id, first.key(), one)?;
        let place = match &life {
            // What a build writes besides waits for its template's row.
            LifeStart::First { build: Some(_) } => None,
            _ => self.0.registry.place(first.key()),
        };
        let new = NewLife {
            intent: &intent,
            run,
            opening: opening.as_ref(),
            asked: &executor,
            takes: place.is_some(),
        };
        let timeout_ms = i64::try_from(timeout_s.saturating_mul(1_000)).unwrap_or(i64::MAX);
        let record = Record { who, id, request: &request, timeout_ms, life: new };
        let recorded = match &life {
            LifeStart::First { build } => {
                record.first(ledger, template.name.as_str(), &egress, build.as_ref()).await
            }
            LifeStart::Next { snapshot, by_traffic } => {
                record.next(ledger, snapshot, *by_traffic).await
            }
        };
        self.0.registry.recorded(&who.tenant, place, recorded)?;
        Start { live: self, who, id, run: &run.id }.up().await
    }
}

/// What the record of a life has, whichever it is.
struct Record<'a> {
    who: &'a Principal,
    id: &'a LiveId,
    request: &'a LiveRequest,
    timeout_ms: i64,
    life: NewLife<'a>,
}

impl Record<'_> {
    async fn first(
        self,
        ledger: &Ledger,
        template: &str,
        egress: &Egress,
        build: Option<&BuildAssignment>,
    ) -> OpResult<LifeRecord> {
        let new = NewLive {
            id: self.id,
            life: self.life,
            template,
            metadata: &self.request.metadata,
            egress,
            timeout_ms: self.timeout_ms,
            pauses: self.request.pause_on_timeout,
            resumes: self.request.resume_on_traffic,
            dedup: self.request.dedup.as_deref(),
            build: build.map(BuildAssignment::row),
        };
        let recorded = ledger.live().create(&new).await?;
        fail_point("live.recorded");
        Ok(recorded)
    }

    async fn next(
        self,
        ledger: &Ledger,
        snapshot: &SnapshotId,
        by_traffic: bool,
    ) -> OpResult<LifeRecord> {
        let audit = Audit {
            reason: if by_traffic { "traffic" } else { "" },
            detail: Some(json!({"snapshot": snapshot, "run": self.life.run.id})),
            ..Audit::by(self.who, "sandbox.resume", self.id.as_str())
        };
        let next = NextLife {
            id: self.id,
            life: self.life,
            snapshot,
            timeout_ms: self.timeout_ms,
            pauses: Some(self.request.pause_on_timeout),
            audit: &audit,
        };
        let recorded = ledger.live().resume(&next).await?;
        fail_point("resume.recorded");
        Ok(recorded)
    }
}
