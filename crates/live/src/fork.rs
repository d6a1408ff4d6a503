//! New sandboxes with the files of one that runs or is paused.

use std::sync::Arc;

use cofferdam_contracts::error::ErrorCode;
use cofferdam_contracts::id::LiveId;
use cofferdam_contracts::live::LiveRequest;
use cofferdam_contracts::snapshot::MAX_FORKS;
use cofferdam_flows::Result;
use cofferdam_ledger::keys::Principal;
use cofferdam_ledger::live::PauseSnapshot;
use cofferdam_sandbox::InitialFiles;

use crate::background::detached;
use crate::guest::handle::Guest;
use crate::handle::LiveHandle;
use crate::live::Live;
use crate::message::Message;
use crate::refusal::{over, refuse, stops};
use crate::snapshot::snapshots::Snapshots;
use crate::spec::{Source, Spec};
use crate::template::resolved_template::ResolvedTemplate;
use crate::template::templates::Templates;
use serde::{Deserialize, Serialize};

/// New sandboxes with the files of one that runs or is paused. Each is made, or says why not.
#[derive(Debug, Serialize, Deserialize)]
pub struct ForkSandbox {
    /// Caller; the sandbox must belong to the tenant of this key.
    pub who: Principal,
    /// Sandbox to copy, which runs here or is paused.
    pub id: LiveId,
    /// Number of new sandboxes, 1 to `MAX_FORKS`.
    pub count: u64,
    /// Time to live of each, in seconds.
    pub timeout_s: Option<u64>,
}

impl Message for ForkSandbox {
    type Reply = Vec<Result<Guest>>;

    async fn answer(self, live: &Live) -> Result<Self::Reply> {
        let forks = live.fork(&self.who, &self.id, self.count, self.timeout_s).await?;
        Ok(forks.into_iter().map(|one| one.map(|held| Guest::of(live, &held))).collect())
    }
}

impl Live {
    /// New sandboxes with the files of one that runs or is paused. Each is made, or says why not.
    ///
    /// # Errors
    /// There is no such sandbox, its files cannot be kept, or the count is out of bounds.
    async fn fork(
        &self,
        who: &Principal,
        id: &LiveId,
        count: u64,
        timeout_s: Option<u64>,
    ) -> Result<Vec<Result<Arc<LiveHandle>>>> {
        if !(1..=MAX_FORKS).contains(&count) {
            let why = format!("count is {count}; it must be between 1 and {MAX_FORKS}");
            return Err(refuse(ErrorCode::PolicyViolation, why));
        }
        let (live, who, id) = (self.clone(), who.clone(), id.clone());
        detached(async move {
            let (asked, template, files) = live.fork_files(&who, &id, count).await?;
            let request = LiveRequest { timeout_s, dedup: None, snapshot: None, ..asked };
            let made = files.into_iter().map(|filling| {
                let (live, who) = (live.clone(), who.clone());
                let spec = Spec::of(request.clone(), template.clone(), Source::Snapshot(filling));
                tokio::spawn(async move { live.launch_new(&who, spec, None).await })
            });
            let made: Vec<_> = made.collect();
            let mut done = Vec::with_capacity(made.len());
            for one in made {
                done.push(one.await.unwrap_or_else(|_| Err(stops())));
            }
            Ok(done)
        })
        .await
    }

    async fn fork_files(
        &self,
        who: &Principal,
        id: &LiveId,
        count: u64,
    ) -> Result<(LiveRequest, ResolvedTemplate, Vec<InitialFiles>)> {
        if let Some(PauseSnapshot { snapshot, .. }) =
            self.0.ledger.live().paused_into(&who.tenant, id).await?
        {
            self.0.registry.executor()?;
            let (mut asked, mut files) = (None, Vec::new());
            for _ in 0..count {
                let (resume_spec, filling) =
                    Snapshots::of(self).open(&who.tenant, &snapshot).await?;
                asked = Some((Templates::of(self).resolve(&resume_spec)?, resume_spec.request));
                // Two sandboxes with one memory would have the same secrets and numbers in it.
                files.push(filling.files_alone());
            }
            let asked = asked.map(|(template, asked)| (asked, template, files));
            return asked.ok_or_else(over);
        }
        let held = self.handle(who, id).await?;
        let kept = Snapshots::of(self).snapshot(&held, held.resume_spec()).await?;
        let opened = (0..count).map(|_| kept.filling(&held.facts.tenant));
        let files: std::io::Result<Vec<InitialFiles>> = opened.collect();
        let files = files.map_err(|why| refuse(ErrorCode::Unavailable, why.to_string()))?;
        let resume_spec = held.resume_spec();
        Snapshots::of(self).fits(&resume_spec)?;
        Ok((resume_spec.request, held.resolved_template().clone(), files))
    }
}
