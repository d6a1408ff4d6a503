//! Long-lived sandboxes: a run of one task whose sandbox is held until it is killed or its time is over.
//!
//! ```text
//! create --one transaction: intent, run, its workflow, app.live_sandboxes--> run workflow -> task workflow
//!   hold: up -> started (token's hash, times) -> registry -> { killed | expired | canceled | died | stopped } -> wipe
//!   the row ends in the commit of the task's end, with its wipe evidence
//! ```
//! **A sandbox is made once.** A second execution, a second attempt and a process that did not ask for it refuse to make
//! it: its name, its token and its environment are in the memory of the process that its caller asked, and in no table.
//! That process alone claims its task and talks to it; another one's answer says so (`elsewhere`). A paused one has no process: its files
//! and what was asked for are sealed on its host, and whoever resumes it there holds its next life (`kept`).
//!
//! One file: what a sandbox that lives has to do with its run, from its row to its end.

mod ahead;
mod basis;
mod begin;
mod build_images;
mod build_layers;
mod build_log;
mod build_steps;
mod builds;
pub mod compared;
mod copied;
mod elsewhere;
mod expected;
mod handles;
mod hold;
mod kept;
mod memory;
mod network;
mod new_file;
mod opened;
mod pause;
mod plain;
mod registry;
mod rest;
pub(crate) mod revoked;
mod room;
mod sealed;
mod sealer;
mod sealer_line;
mod shelf;
mod spare;
mod sweep;
mod templates;
mod upload_digest;
mod uploads;
mod wait;
mod wake;
mod work;

use std::collections::BTreeMap;
use std::time::Duration;

use cofferdam_ambient::clock;
use cofferdam_ambient::random::secret_bytes;
use cofferdam_contracts::error::{ErrorCode, Refusal};
use cofferdam_contracts::id::{ExecutorId, LiveId, RunId, TaskKey, TemplateName};
use cofferdam_contracts::live::{LiveRequest, LiveState, LiveView, MAX_LIVE_S};
use cofferdam_contracts::recipe::Lane;
use cofferdam_contracts::sandbox::{Egress, SandboxRequest};
use cofferdam_ledger::audit::Audit;
use cofferdam_ledger::failpoint::fail_point;
use cofferdam_ledger::keys::Principal;
use cofferdam_ledger::listen::{Wake, woken};
use cofferdam_ledger::live_begin::{NewLife, NewLive, RecordedLife};
use cofferdam_ledger::ops::Cancels;
use cofferdam_ledger::{Checked, OpError};
pub use cofferdam_sandbox::inside;
pub use cofferdam_sandbox::templates::Template;
pub use cofferdam_sandbox::{
    Agent, AgentError, Manner, Reading, Remote, Running, Said, Stream, USUAL_PATH, Watching,
};
use std::sync::Arc;
use tokio::sync::broadcast::Receiver;

use ahead::{Files, unused_wiped};
use basis::{Building, Ground};
pub use begin::USUAL_VARIABLES;
pub use builds::{BuildAsked, BuildOpened};
use elsewhere::stops;
use expected::{Expected, Expecting};
pub(crate) use hold::hold;
pub use kept::Wish;
pub(crate) use plain::PlainLayers;
use registry::Order;
pub(crate) use registry::Registry;
pub use registry::{Held, STREAMS, VISITORS};
pub(crate) use room::UnrecordedBytes;
pub use sealer::{SEAL_COMMAND, seal_layer};
pub(crate) use shelf::Shelf;
pub(crate) use sweep::tidy_beside;
pub use wake::Knock;
pub(crate) use work::RUN;

use crate::built_in::Launch;
use crate::error::{Error, Result};
use crate::own_tasks::Place;
use crate::{Flows, config, egress, floor, quota};

/// How long a creation may wait for room and for its start; below the patience of clients, which is 60 s.
pub const CREATE_PATIENCE: Duration = Duration::from_secs(50);
/// What is said of a sandbox whose host is lost.
const LOST_HOST: &str = "the sandbox is canceled and its host is lost: that nothing is left of it is verified once a worker runs there \
    again; ask again later, or see `cofferdam session ls`";
/// How long a kill may take: the bound of a wipe, and of its commit.
const KILL_PATIENCE: Duration = Duration::from_secs(20);
/// A waiting caller looks at the row this often, should a notification be lost.
const LOOK: Duration = Duration::from_secs(1);
/// How often a worker that stops looks whether its sandboxes have ended: a wipe takes some ms.
const STOP_LOOK: Duration = Duration::from_millis(20);
const LETTERS: &[u8; 36] = b"0123456789abcdefghijklmnopqrstuvwxyz";
/// Letters of an id. 36^20 names: more than 100 bits, so that none is guessed.
const ID_LETTERS: usize = 20;

/// An unguessable name: never from the seed, as with names of sandboxes.
fn fresh_letters() -> String {
    let bytes: [u8; ID_LETTERS] = secret_bytes();
    let letter =
        |byte: &u8| LETTERS.get(usize::from(*byte) % LETTERS.len()).map(|b| char::from(*b));
    bytes.iter().filter_map(letter).collect()
}

/// The template and the time to live of a request, once all of it is within its bounds.
fn checked(request: &LiveRequest) -> Result<(TemplateName, u64)> {
    request.check().map_err(|why| refuse(ErrorCode::PolicyViolation, why.to_string()))
}

fn refuse(code: ErrorCode, why: impl Into<String>) -> Error {
    Refusal::new(code, why).into()
}

impl Flows {
    /// Creates a sandbox and waits until it answers. One that was created before with the same `dedup` is given instead.
    /// It goes on where its caller hangs up: who repeats the request finds what it made.
    ///
    /// # Errors
    /// A request out of bounds, names without a grant, no room in time, or another request with the same `dedup`.
    pub async fn live_create(&self, who: &Principal, request: &LiveRequest) -> Result<Arc<Held>> {
        if request.resume_on_traffic && !request.pause_on_timeout {
            let why = "resumeOnTraffic needs pauseOnTimeout: only a sandbox that its time pauses waits for requests";
            return Err(refuse(ErrorCode::PolicyViolation, why));
        }
        let (flows, who, request) = (self.clone(), who.clone(), request.clone());
        let held = detached(async move {
            let held = flows.live_make(&who, &request, None).await?;
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

    /// Makes one from this ground, or from what the request names: a snapshot, or a template.
    async fn live_make(
        &self,
        who: &Principal,
        request: &LiveRequest,
        ground: Option<Ground>,
    ) -> Result<Arc<Held>> {
        let (name, timeout_s) = checked(request)?;
        let executor = self.live_asked()?;
        if let Some(dedup) = &request.dedup
            && let Some(found) = self.ledger.live().by_dedup(&who.tenant, dedup).await?
        {
            return self.live_wait(who, &found.id, &found.run_id).await;
        }
        let id = LiveId::parse(&fresh_letters()).map_err(Error::corrupt("id"))?;
        let Ground { basis, filling, inherited, build } = match (ground, &request.snapshot) {
            (Some(ground), _) => ground,
            (None, Some(snapshot)) => {
                let (again, files) = self.live_opened(&who.tenant, snapshot).await?;
                let ground = Ground::filled(self.basis_again(&again)?, files.files_alone());
                Ground { inherited: again.request.env, ..ground }
            }
            (None, None) => match self.template_named(who, name.as_str()).await? {
                Some(built) => {
                    let (again, files) = self.live_opened(&who.tenant, &built).await?;
                    Ground::filled(self.basis_again(&again)?, files.files_alone())
                }
                None => Ground {
                    basis: self.host_basis(&name)?,
                    filling: None,
                    inherited: BTreeMap::new(),
                    build: None,
                },
            },
        };
        let mut sandbox = work::request(request, &basis);
        let settings = config::settings(&self.ledger, &who.tenant).await?;
        settings.settle("the sandbox", &mut sandbox)?;
        floor::admit(&self.ledger, &settings).await?;
        self.live_admit(who, &sandbox.egress).await?;
        let egress = sandbox.egress.clone();
        let files = self.live_begin(who, &sandbox, Files::of(filling, None));
        let work = work::of(&id, sandbox);
        let start = Launch {
            who,
            key_id: &who.key_id,
            subject: format!("live:{id}"),
            goal: format!("sandbox {id}"),
            work: &work,
            lane: Lane::Interactive,
        };
        let begun = work::RUN.start(self, start)?;
        let first = work::RUN.first_round(&begun, work)?;
        let (intent, run, opening) = (begun.intent(), &begun.run, first.opening());
        // Before the commit, so that a worker of this process finds it; and no longer than somebody waits for it.
        let one = Expected {
            tenant: who.tenant.clone(),
            key_id: who.key_id.clone(),
            request: request.clone(),
            basis: basis.clone(),
            inherited,
            files,
            tokens: None,
        };
        let asked = self.live_expect(&id, first.key(), one)?;
        // What a build writes besides waits for its template's row.
        let place = match &build {
            None => self.live.place(first.key()),
            Some(_) => None,
        };
        let new = NewLive {
            id: &id,
            life: NewLife {
                intent: &intent,
                run,
                opening: opening.as_ref(),
                asked: &executor,
                takes: place.is_some(),
            },
            template: basis.name.as_str(),
            metadata: &request.metadata,
            egress: &egress,
            timeout_ms: i64::try_from(timeout_s.saturating_mul(1_000)).unwrap_or(i64::MAX),
            pauses: request.pause_on_timeout,
            resumes: request.resume_on_traffic,
            dedup: request.dedup.as_deref(),
            build: build.as_ref().map(Building::row),
        };
        let recorded = self.ledger.live().create(&new).await;
        if recorded.is_ok() {
            fail_point("live.recorded");
        }
        match self.live_recorded(who, place, recorded) {
            Ok(()) => self.live_wait(who, &id, &run.id).await,
            Err(error) => {
                drop(asked);
                match (&request.dedup, error.is_unique_violation()) {
                    (Some(dedup), true) => {
                        let found = self.ledger.live().by_dedup(&who.tenant, dedup).await?;
                        let found = found.ok_or_else(|| Refusal::not_found("sandbox"))?;
                        self.live_wait(who, &found.id, &found.run_id).await
                    }
                    _ => Err(error),
                }
            }
        }
    }

    /// Refuses names that are not granted, and a tenant whose quota is full.
    async fn live_admit(&self, who: &Principal, egress: &Egress) -> Result<()> {
        quota::admit(self, &who.tenant).await?;
        egress::admit_live(&self.ledger, who, egress).await
    }

    /// Begins to make what is admitted, where that can be done before it is on record.
    fn live_begin(&self, who: &Principal, sandbox: &SandboxRequest, files: Files) -> Files {
        match self.live.maker() {
            Some(maker) => maker.begin(&who.tenant, sandbox, files),
            None => files,
        }
    }

    /// What came of the record of what was begun: its task is started, where it is this worker's already.
    fn live_recorded(
        &self,
        who: &Principal,
        place: Option<Place>,
        recorded: Checked<RecordedLife>,
    ) -> Result<()> {
        match (recorded, place) {
            (Ok(recorded), Some(place)) if recorded.is_taken => place.start(),
            (Ok(_), Some(place)) => place.unused(),
            (Ok(_), None) => {}
            (Err(error), place) => {
                if let (Some(place), OpError::Refused(_)) = (place, &error) {
                    place.unused();
                }
                if let Some(maker) = self.live.maker() {
                    maker.refused(&who.tenant);
                }
                return Err(error.into());
            }
        }
        Ok(())
    }

    fn live_expect(&self, id: &LiveId, task: &TaskKey, one: Expected) -> Result<Expecting> {
        if let Some(host) = self.live.host() {
            self.live.expected.forget_made(host);
        }
        self.live.expected.expect(id, task, one).ok_or_else(|| {
            refuse(
                ErrorCode::Unavailable,
                "the sandbox is being made already, or too many of this tenant wait for room; try again",
            )
        })
    }

    /// A tenant's sandbox as it is recorded.
    ///
    /// # Errors
    /// There is none of this id in the tenant.
    pub async fn live_view(&self, who: &Principal, id: &LiveId) -> Result<LiveView> {
        let found = self.ledger.live().by_id(&who.tenant, id).await?;
        Ok(found.ok_or_else(|| Refusal::not_found("sandbox"))?)
    }

    /// The handle of a running sandbox of the tenant.
    ///
    /// # Errors
    /// It does not run, is another tenant's, or another process holds it.
    pub async fn live_held(&self, who: &Principal, id: &LiveId) -> Result<Arc<Held>> {
        if let Some(held) = self.live.find(id)
            && held.tenant == who.tenant
        {
            return Ok(held);
        }
        match self.live_view(who, id).await?.state {
            LiveState::Running => Err(self.live_unheld(id).await?),
            LiveState::Starting => {
                Err(refuse(ErrorCode::Unavailable, "the sandbox has not started yet; try again"))
            }
            LiveState::Paused => {
                Err(refuse(ErrorCode::StateConflict, "the sandbox is paused: resume it first"))
            }
            LiveState::Ended => Err(Refusal::not_found("running sandbox").into()),
        }
    }

    /// The handle of a running sandbox by its id alone, of any tenant: its caller checks a token next.
    #[must_use]
    pub fn live_named(&self, id: &LiveId) -> Option<Arc<Held>> {
        self.live.find(id)
    }

    /// Every sandbox that this process holds.
    #[must_use]
    pub fn live_here(&self) -> Vec<Arc<Held>> {
        self.live.all()
    }

    /// Sets when a running sandbox ends: so many seconds from now, or only if that is later.
    ///
    /// # Errors
    /// It does not run here, or the time is beyond a day.
    pub async fn live_extend(
        &self,
        who: &Principal,
        id: &LiveId,
        seconds: u64,
        longer: bool,
    ) -> Result<()> {
        if seconds > MAX_LIVE_S {
            let why = format!("timeout is {seconds}; it must be at most {MAX_LIVE_S} seconds");
            return Err(refuse(ErrorCode::PolicyViolation, why));
        }
        let held = self.live_held(who, id).await?;
        // Who lost a grant keeps no sandbox that has it by extending it day by day.
        egress::admit_live(&self.ledger, who, &held.egress()).await?;
        let ms = i64::try_from(seconds.saturating_mul(1_000)).unwrap_or(i64::MAX);
        let (flows, tenant) = (self.clone(), who.tenant.clone());
        // Both or neither, also where the caller hangs up.
        detached(async move {
            let over = || Error::from(Refusal::not_found("running sandbox"));
            let _turn = held.turn.lock().await;
            if !held.goes_on() {
                return Err(over());
            }
            let left = flows.ledger.live().extend(&tenant, &held.id, ms, longer).await?;
            match left.is_some_and(|left| held.ends_in(left)) {
                true => Ok(()),
                false => Err(over()),
            }
        })
        .await
    }

    /// Ends what this process holds, with its evidence, because the process stops; waits no longer than this.
    pub(crate) async fn live_stop(&self, executor: &ExecutorId, patience: Duration) {
        self.live.expected.clear();
        let unused = async {
            if let Some(maker) = self.live.maker() {
                maker.close(patience).await;
            }
        };
        let held = self.live.all();
        held.iter().for_each(|held| held.end(Order::Stop));
        let ended = async {
            while !held.is_empty() && self.ledger.live().unended(executor).await.unwrap_or(0) > 0 {
                clock::sleep(STOP_LOOK).await;
            }
        };
        let (ended, ()) = tokio::join!(tokio::time::timeout(patience, ended), unused);
        if ended.is_err() {
            tracing::warn!(
                "not every sandbox ended in time; the next worker of this host wipes them"
            );
        }
    }

    /// Ends a sandbox and answers once its wipe is verified and on record. `false`: it had ended before.
    ///
    /// # Errors
    /// There is none of this id, or its wipe could not be verified: then its session is held.
    pub async fn live_kill(&self, who: &Principal, id: &LiveId) -> Result<bool> {
        let mut wakes = self.wakes.subscribe();
        let run = match self.live.find(id).filter(|held| held.tenant == who.tenant) {
            Some(held) => {
                held.end(Order::Kill);
                held.run.clone()
            }
            None => {
                let mut view = self.live_view(who, id).await?;
                let was_paused = view.state == LiveState::Paused;
                if was_paused {
                    self.live_end_paused(who, id).await?;
                    view = self.live_view(who, id).await?;
                }
                match (view.ended_at.is_some(), view.wiped) {
                    (true, true) if self.live_is_unmade(who, id).await? => return Ok(was_paused),
                    // Its worker was lost: another one wipes it now, where its host has one.
                    (true, _) => self.live_reachable(&view.run_id).await?,
                    (false, _) => self.live_cancel(who, id).await?,
                }
                view.run_id
            }
        };
        let over = tokio::time::timeout(KILL_PATIENCE, async {
            loop {
                moved(&mut wakes, &run).await;
                let view = self.live_view(who, id).await?;
                if view.ended_at.is_some() && view.wiped && self.live_is_unmade(who, id).await? {
                    return Ok::<_, Error>(true);
                }
                if !view.wiped {
                    self.live_reachable(&run).await?;
                }
                // A pause was faster.
                if view.state == LiveState::Paused {
                    self.live_end_paused(who, id).await?;
                }
            }
        });
        over.await.unwrap_or_else(|_| Err(unverified()))
    }

    /// Waits until nothing is left of what was made for one whose task never had it: that one has no session on record. `false`: its
    /// task has it after all.
    async fn live_is_unmade(&self, who: &Principal, id: &LiveId) -> Result<bool> {
        drop(self.live.expected.take(id));
        let Some(host) = self.live.host() else { return Ok(true) };
        let Some(name) = self.live.expected.made(id) else { return Ok(true) };
        if !unused_wiped(host, &name).await || host.names().has_failed_ahead(&name) {
            return Err(unverified());
        }
        Ok(self.live_view(who, id).await?.wiped)
    }

    /// Ends a paused sandbox: its files are erased.
    async fn live_end_paused(&self, who: &Principal, id: &LiveId) -> Result<()> {
        let audit = Audit { reason: "sandbox", ..Audit::by(who, "sandbox.kill", id.as_str()) };
        self.ledger.live().end_paused(id, &audit).await?;
        self.snapshots_tidy().await;
        Ok(())
    }

    /// Refuses to wait for what only a lost host could show.
    async fn live_reachable(&self, run: &RunId) -> Result<()> {
        match self.ledger.sessions().is_on_a_lost_host(run).await? {
            true => Err(refuse(ErrorCode::Unavailable, LOST_HOST)),
            false => Ok(()),
        }
    }

    async fn live_cancel(&self, who: &Principal, id: &LiveId) -> Result<()> {
        let workflow = self.ledger.live().workflow(&who.tenant, id).await?;
        let workflow = workflow.ok_or_else(|| Refusal::not_found("sandbox"))?;
        let audit = Audit { reason: "sandbox", ..Audit::by(who, "cancel", workflow.as_str()) };
        match self.ledger.ops().cancel(&workflow, Cancels::All, &audit).await.map_err(Error::from) {
            // It ended meanwhile, or is about to.
            Err(Error::Refused(refusal)) if refusal.code == ErrorCode::StateConflict => Ok(()),
            other => other,
        }
    }
}

/// Runs to its end, whatever becomes of who waits for it.
async fn detached<T: Send + 'static>(
    work: impl Future<Output = Result<T>> + Send + 'static,
) -> Result<T> {
    tokio::spawn(work).await.map_err(|_| stops())?
}

fn unverified() -> Error {
    let why = "the sandbox is canceled, but that nothing is left of it is not verified yet; ask again, and see `cofferdam session ls`";
    refuse(ErrorCode::Unavailable, why)
}

/// Until something of this run ended, or it is time to look.
async fn moved(wakes: &mut Receiver<Wake>, run: &RunId) {
    let ours = |wake: &Wake| matches!(wake, Wake::Task(r) | Wake::Run(r) if r == run.as_str());
    tokio::select! {
        () = woken(wakes, ours) => {}
        () = clock::sleep(LOOK) => {}
    }
}
