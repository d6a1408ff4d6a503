//! Pause, resume, snapshot and fork: the files of long-lived sandboxes, kept and brought back.
//!
//! ```text
//! pause:    stop -> layer held by its sealer, room for its file -> snapshot and pause on record -> processes killed
//!           -> wiped but for the layer -> answer; meanwhile sealed, fsync -> layer ended -> on record (`plain`)
//! resume:   layer lent, or its sealed file checked -> the next life on record, with a run of its own -> started -> answer
//! snapshot: stop -> file (`copied`) -> go on -> fsync -> on record            fork: the same without a record, once for all its sandboxes
//! ```
//! A layer that does not lie in memory is sealed before its pause is on record, as those of snapshots are. Killed at any point,
//! a sandbox is what the ledger says: it ran and ended with its worker, or it is paused and its files are in a whole file or
//! in a layer that a living process seals. One whose layer is lost before (a reboot) is reported as ended.
//!
//! One file: pause, resume, snapshot and fork hold the same locks.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use cofferdam_ambient::clock::{self, Stopwatch};
use cofferdam_ambient::random::secret_hex;
use cofferdam_contracts::error::{ErrorCode, Refusal};
use cofferdam_contracts::id::{BuildId, Digest, LiveId, SnapshotId, TenantId};
use cofferdam_contracts::live::{DEFAULT_LIVE_S, LiveRequest, LiveState};
use cofferdam_contracts::recipe::Lane;
use cofferdam_contracts::snapshot::{MAX_FORKS, MAX_SNAPSHOT_NAME, SnapshotKind, SnapshotView};
use cofferdam_ledger::audit::Audit;
use cofferdam_ledger::failpoint::fail_point;
use cofferdam_ledger::kept_files::KeptTable;
use cofferdam_ledger::keys::Principal;
use cofferdam_ledger::live::PausedInto;
use cofferdam_ledger::live_begin::{NewLife, NextLife};
use cofferdam_ledger::snapshots::{FilesToKeep, Form, KeptSnapshot};
use cofferdam_ledger::template_layers::NewLayer;
use cofferdam_sandbox::Filling;
use serde_json::json;

use super::ahead::Files;
use super::basis::{Basis, Ground};
use super::expected::Expected;
use super::plain::{Lending, Lent};
use super::registry::{Again, Held};
use super::sealed::FileOwner;
use super::shelf::{KeptFile, Shelf};
use super::templates::base_name;
use super::{KILL_PATIENCE, detached, fresh_letters, moved, refuse, stops, work};
use crate::built_in::Launch;
use crate::error::{Error, Result};
use crate::patience::patiently;
use crate::{Flows, config, egress, floor, quota};

/// Between two looks at a file that another process writes.
pub(super) const SEAL_LOOK: Duration = Duration::from_millis(50);

pub(super) fn conflict(why: impl Into<String>) -> Error {
    refuse(ErrorCode::StateConflict, why)
}

pub(super) fn over() -> Error {
    Refusal::not_found("running sandbox").into()
}

pub(super) fn fresh() -> Result<SnapshotId> {
    SnapshotId::parse(&fresh_letters()).map_err(Error::corrupt("id"))
}

/// Work that waits for a disk.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> std::io::Result<T> + Send + 'static,
) -> std::io::Result<T> {
    tokio::task::spawn_blocking(work)
        .await
        .unwrap_or_else(|error| Err(std::io::Error::other(error)))
}

/// Kept files, once they outlive the host's power.
pub(super) async fn synced(kept: KeptFile) -> Result<KeptFile> {
    let kept = blocking(move || kept.sync().map(|()| kept));
    kept.await.map_err(|why| refuse(ErrorCode::Unavailable, why.to_string()))
}

pub(super) fn audit<'a>(
    who: &'a Principal,
    op: &'a str,
    held: &'a Held,
    kept: &KeptFile,
) -> Audit<'a> {
    let detail = json!({"snapshot": kept.id, "bytes": kept.bytes, "memory": kept.memory});
    Audit { detail: Some(detail), ..Audit::by(who, op, held.id.as_str()) }
}

/// How a paused sandbox is to go on.
#[derive(Debug, Clone, Copy)]
pub struct Wish {
    /// Time to live in seconds, as its caller says.
    pub(super) timeout_s: Option<u64>,
    /// Whether the end of its time pauses it; `None`: as before.
    pub(super) pauses: Option<bool>,
    /// A request to it resumes it.
    pub(super) by_traffic: bool,
    /// Whether its processes go on, where they were kept.
    pub(super) memory: bool,
}

impl Wish {
    /// What a caller asks for; `memory`: whether its processes are to go on, where they were kept, as they do by default.
    #[must_use]
    pub fn of(timeout_s: Option<u64>, pauses: Option<bool>, memory: Option<bool>) -> Self {
        Self { timeout_s, pauses, by_traffic: false, memory: memory != Some(false) }
    }

    /// Time to live in seconds. A request has no word in it: as long as before, and not less than the default. Pure.
    fn lives_s(&self, before: Option<u64>) -> u64 {
        match self.by_traffic {
            true => before.unwrap_or(DEFAULT_LIVE_S).max(DEFAULT_LIVE_S),
            false => self.timeout_s.unwrap_or(DEFAULT_LIVE_S),
        }
    }
}

/// Where kept files are, and their key, sealed.
pub(super) struct Filed {
    pub shelf: Arc<Shelf>,
    place: String,
    sealed_key: Vec<u8>,
    sealed_by: Digest,
}

impl Filed {
    pub(super) fn row<'a>(
        &'a self,
        held: &'a Held,
        kept: &'a KeptFile,
        kind: SnapshotKind,
        name: Option<&'a str>,
        form: Form<'a>,
    ) -> FilesToKeep<'a> {
        FilesToKeep {
            id: &kept.id,
            live: &held.id,
            run: &held.run,
            kind,
            memory: kept.memory,
            name,
            place: &self.place,
            bytes: kept.bytes,
            form,
            sealed_key: &self.sealed_key,
            sealed_by: &self.sealed_by,
        }
    }
}

/// What the files of one moment of a sandbox that goes on are kept as.
pub(super) enum SealedAs<'a> {
    /// What its user asked for.
    Snapshot,
    /// A layer of a build.
    Layer(NewLayer<'a>),
    /// What this build leaves, which may be a layer.
    Template(&'a BuildId, Option<NewLayer<'a>>),
}

impl Flows {
    /// Puts sealed files on record, and gives them their name.
    ///
    /// # Errors
    /// They are not on record: its sandbox has ended, or the database does not say.
    pub(super) async fn keep_as(
        &self,
        who: &Principal,
        held: &Held,
        mut kept: KeptFile,
        name: Option<&str>,
        what: SealedAs<'_>,
    ) -> Result<KeptFile> {
        let filed = self.filed(held, &kept)?;
        let (kind, op) = match &what {
            SealedAs::Snapshot => (SnapshotKind::Snapshot, "sandbox.snapshot"),
            SealedAs::Layer(_) => (SnapshotKind::Layer, "template.layer"),
            SealedAs::Template(..) => (SnapshotKind::Template, "template.ready"),
        };
        let new = filed.row(held, &kept, kind, name, Form::Sealed(&kept.sha256));
        let audit = audit(who, op, held, &kept);
        let ledger = &self.ledger;
        let added = match &what {
            SealedAs::Snapshot => ledger.snapshots().add(&new, &audit).await,
            SealedAs::Layer(layer) => ledger.layers().add(&new, layer, &audit).await,
            SealedAs::Template(build, layer) => {
                ledger.builds().ready(build, &new, layer.as_ref(), &audit).await
            }
        };
        if !self.recorded(&mut kept, added, KeptTable::Snapshots).await? {
            return Err(over());
        }
        filed.shelf.give_name(&mut kept);
        Ok(kept)
    }

    pub(super) fn filed(&self, held: &Held, kept: &KeptFile) -> Result<Filed> {
        let (shelf, vault) = (self.shelf()?, self.vault()?);
        let sealed_key = vault.seal_key(&held.tenant, &kept.id, &kept.key);
        let sealed_key =
            sealed_key.ok_or_else(|| conflict("the snapshot's key could not be sealed"))?;
        let (place, sealed_by) = (shelf.place(), vault.fingerprint().clone());
        Ok(Filed { shelf, place, sealed_key, sealed_by })
    }

    pub(super) fn shelf(&self) -> Result<Arc<Shelf>> {
        self.kept.clone().ok_or_else(|| conflict("this process keeps no snapshots"))
    }

    /// Whether kept files are on record. A commit whose answer was lost may have happened: the ledger is asked until it says,
    /// and where it does not, the file is left for the next start.
    pub(super) async fn recorded(
        &self,
        kept: &mut KeptFile,
        outcome: cofferdam_ledger::Result<bool>,
        table: KeptTable,
    ) -> Result<bool> {
        let error = match outcome {
            Ok(recorded) => return Ok(recorded),
            Err(error) => error,
        };
        match patiently(|| self.ledger.kept_files(table).is_recorded(&kept.id)).await {
            Ok(true) => Ok(true),
            Ok(false) => Err(error.into()),
            Err(_) => {
                kept.leave();
                Err(error.into())
            }
        }
    }

    /// Keeps the files of a sandbox that runs and goes on.
    ///
    /// # Errors
    /// As for a pause; or the name is out of bounds.
    pub async fn live_snapshot(
        &self,
        who: &Principal,
        id: &LiveId,
        name: Option<String>,
    ) -> Result<SnapshotView> {
        let fits = |n: &String| (1..=MAX_SNAPSHOT_NAME).contains(&n.len()) && !n.contains('\0');
        if !name.as_ref().is_none_or(fits) {
            let why =
                format!("name: a snapshot's name has 1 to {MAX_SNAPSHOT_NAME} bytes, and no NUL");
            return Err(refuse(ErrorCode::PolicyViolation, why));
        }
        let held = self.live_held(who, id).await?;
        let (flows, who) = (self.clone(), who.clone());
        detached(async move { flows.snapshot_held(&who, &held, name.as_deref()).await }).await
    }

    async fn snapshot_held(
        &self,
        who: &Principal,
        held: &Arc<Held>,
        name: Option<&str>,
    ) -> Result<SnapshotView> {
        self.vault()?;
        let kept = self.keep_and_go_on(held, held.again()).await?;
        let kept = self.keep_as(who, held, kept, name, SealedAs::Snapshot).await?;
        let view = self.ledger.snapshots().kept(&held.tenant, &kept.id).await?;
        Ok(view.ok_or_else(|| Refusal::not_found("snapshot"))?.view)
    }

    /// The files of one moment of a sandbox, which goes on before they are on the disk.
    pub(super) async fn keep_and_go_on(&self, held: &Arc<Held>, again: Again) -> Result<KeptFile> {
        let keeping = held.keeping.lock().await;
        if !held.goes_on() {
            return Err(over());
        }
        let (still, kept) = self.keep_files(held, again).await?;
        drop(still);
        drop(keeping);
        synced(kept).await
    }

    /// A snapshot on record, once its files are sealed.
    async fn once_sealed(&self, tenant: &TenantId, id: &SnapshotId) -> Result<KeptSnapshot> {
        let waited = Stopwatch::start();
        loop {
            let kept = self.ledger.snapshots().kept(tenant, id).await?;
            let kept = kept.ok_or_else(|| Refusal::not_found("snapshot"))?;
            if kept.sha256.is_some() {
                return Ok(kept);
            }
            let left = super::CREATE_PATIENCE.saturating_sub(waited.elapsed());
            if left.is_zero() {
                let why = "the sandbox's files are still being sealed; try again";
                return Err(refuse(ErrorCode::Unavailable, why));
            }
            let over = async {
                if self.plain.sealed(id).await.is_none() {
                    clock::sleep(SEAL_LOOK).await;
                }
            };
            let _ = tokio::time::timeout(left, over).await;
        }
    }

    /// The layer of a pause, unsealed or at rest, for the next life of its sandbox, with what was asked for; `None`: use the file.
    async fn lent(&self, id: &SnapshotId) -> Result<Option<(Again, Filling, Lent)>> {
        let Some(again) = self.plain.again(id) else { return Ok(None) };
        self.fits(&again)?;
        // What a template starts changes files before its life is on record; a life that is not is to leave the sealed ones.
        if self.basis_again(&again)?.program.is_some() {
            let sealed = tokio::time::timeout(super::CREATE_PATIENCE, self.plain.sealed(id));
            if !matches!(sealed.await, Ok(Some(true))) {
                return Ok(None);
            }
        }
        match self.plain.lend(id).await {
            Some(Lending::Lent(lent, layer)) => {
                Ok(Some((Again::clone(&again), Filling::Layer(layer), lent)))
            }
            Some(Lending::Busy) => Err(conflict("the sandbox is being resumed")),
            None => Ok(None),
        }
    }

    /// The files of a snapshot on record, once they are checked, and what was asked for with them. They lie on the image of
    /// their template as it is now.
    pub(super) async fn live_opened(
        &self,
        tenant: &TenantId,
        id: &SnapshotId,
    ) -> Result<(Again, Filling)> {
        let kept = self.once_sealed(tenant, id).await?;
        let shelf = self.shelf()?;
        if kept.place != shelf.place() {
            let why = "the snapshot's file is on another host; ask the server that made it";
            return Err(refuse(ErrorCode::WrongServer, why));
        }
        let vault = self.vault()?;
        if *vault.fingerprint() != kept.sealed_by {
            let why = "the snapshot is sealed under another secrets key: copy secrets.key from the host that made it";
            return Err(conflict(why));
        }
        let key = vault.open_key(tenant, id, &kept.sealed_key);
        let key = key.ok_or_else(|| damaged(id, "its key does not open"))?;
        let (tenant, name) = (tenant.clone(), id.clone());
        let opened = blocking(move || {
            let owner = FileOwner { tenant: &tenant, snapshot: &name };
            shelf.open(owner, &key)
        });
        let opened = opened.await;
        let (again, filling) = opened.map_err(|why| {
            tracing::error!(snapshot = %id, %why, "a snapshot cannot be opened");
            damaged(id, super::compared::unopened(&why))
        })?;
        self.fits(&again)?;
        // Its kernel could not write it, as is on record.
        let filling = if kept.view.memory { filling } else { filling.files_alone() };
        Ok((again, filling))
    }

    /// Refuses files whose template is another one now: what they change is not there, or is something else.
    fn fits(&self, again: &Again) -> Result<()> {
        let (name, _) = super::checked(&again.request)?;
        let now = match (&again.built, &again.image) {
            // Its image is named by its digest, so it is there as it was or not at all.
            (Some(_), Some(_)) => return Ok(()),
            // The host's own programs, unless `base` was built since.
            (Some(_), None) => self.host_basis(&base_name()?)?.image,
            (None, _) => self.host_basis(&name)?.image,
        };
        match now == again.image {
            true => Ok(()),
            false => Err(conflict(format!(
                "the template {name} was built anew, and these files lie on the earlier one: add its image again \
                 (`cofferdam template add`)"
            ))),
        }
    }

    /// Resumes a paused sandbox under its id and waits until it answers. `None`: it is not paused.
    ///
    /// # Errors
    /// There is none of this id, its file is damaged or elsewhere, or there is no room: then it stays paused.
    pub async fn live_resume(
        &self,
        who: &Principal,
        id: &LiveId,
        wish: Wish,
    ) -> Result<Option<Arc<Held>>> {
        let (flows, asker, id) = (self.clone(), who.clone(), id.clone());
        let held = detached(async move { flows.resume(&asker, &id, wish).await }).await;
        self.snapshots_tidy_soon();
        held
    }

    /// What a sandbox is paused into, as soon as its last life is over. One whose wipe takes longer than a wipe may is not waited
    /// for: its resume is refused.
    async fn rested(&self, who: &Principal, id: &LiveId) -> Result<Option<SnapshotId>> {
        let (mut wakes, since) = (self.wakes.subscribe(), Stopwatch::start());
        loop {
            let paused = self.ledger.live().paused_into(&who.tenant, id).await?;
            match paused {
                Some(PausedInto { settles: Some(run), .. }) if since.elapsed() < KILL_PATIENCE => {
                    moved(&mut wakes, &run).await;
                }
                paused => return Ok(paused.map(|paused| paused.snapshot)),
            }
        }
    }

    pub(super) async fn resume(
        &self,
        who: &Principal,
        id: &LiveId,
        wish: Wish,
    ) -> Result<Option<Arc<Held>>> {
        let Some(snapshot) = self.rested(who, id).await? else {
            return match self.live_view(who, id).await?.state {
                LiveState::Ended => Err(Refusal::not_found("paused sandbox").into()),
                _ => Ok(None),
            };
        };
        let executor = self.live_asked()?;
        let (lent, settings, quota) = tokio::join!(
            self.lent(&snapshot),
            config::settings(&self.ledger, &who.tenant),
            quota::admit(self, &who.tenant),
        );
        quota?;
        let (again, filling, lent) = match lent? {
            Some((again, filling, lent)) => (again, filling, Some(lent)),
            None => {
                let (again, filling) = self.live_opened(&who.tenant, &snapshot).await?;
                let filling = if wish.memory { filling } else { filling.files_alone() };
                (again, filling, None)
            }
        };
        fail_point("resume.opened");
        let basis = self.basis_again(&again)?;
        let Again { request: asked, tokens, .. } = again;
        let request = LiveRequest {
            timeout_s: Some(wish.lives_s(asked.timeout_s)),
            pause_on_timeout: wish.pauses.unwrap_or(asked.pause_on_timeout),
            ..asked
        };
        let (_, timeout_s) = super::checked(&request)?;
        let mut sandbox = work::request(&request, &basis);
        let settings = settings?;
        settings.settle("the sandbox", &mut sandbox)?;
        floor::admit(&self.ledger, &settings).await?;
        egress::admit_live(&self.ledger, who, &sandbox.egress).await?;
        let files = self.live_begin(who, &sandbox, Files::of(Some(filling), lent));
        let work = work::of(id, sandbox);
        let start = Launch {
            who,
            key_id: &who.key_id,
            // Each life has a run of its own, also one that does not begin.
            subject: format!("live:{id}:{}", secret_hex(8)),
            goal: format!("sandbox {id}, resumed"),
            work: &work,
            lane: Lane::Interactive,
        };
        let begun = work::RUN.start(self, start)?;
        let first = work::RUN.first_round(&begun, work)?;
        let (intent, run, opening) = (begun.intent(), &begun.run, first.opening());
        let detail = json!({"snapshot": snapshot, "run": run.id});
        let reason = if wish.by_traffic { "traffic" } else { "" };
        let audit = Audit::by(who, "sandbox.resume", id.as_str());
        let audit = Audit { reason, detail: Some(detail), ..audit };
        let pauses = Some(request.pause_on_timeout);
        let one = Expected {
            tenant: who.tenant.clone(),
            key_id: who.key_id.clone(),
            request,
            basis,
            inherited: BTreeMap::new(),
            files,
            tokens: self.tokens_again(id, tokens).await?,
        };
        let _asked = self.live_expect(id, first.key(), one)?;
        let place = self.live.place(first.key());
        let next = NextLife {
            id,
            life: NewLife {
                intent: &intent,
                run,
                opening: opening.as_ref(),
                asked: &executor,
                takes: place.is_some(),
            },
            snapshot: &snapshot,
            timeout_ms: i64::try_from(timeout_s.saturating_mul(1_000)).unwrap_or(i64::MAX),
            pauses,
            audit: &audit,
        };
        let recorded = self.ledger.live().resume(&next).await;
        if recorded.is_ok() {
            fail_point("resume.recorded");
        }
        self.live_recorded(who, place, recorded)?;
        self.live_wait(who, id, &run.id).await.map(Some)
    }

    /// New sandboxes with the files of one that runs or is paused. Each is made, or says why not.
    ///
    /// # Errors
    /// There is no such sandbox, its files cannot be kept, or the count is out of bounds.
    pub async fn live_fork(
        &self,
        who: &Principal,
        id: &LiveId,
        count: u64,
        timeout_s: Option<u64>,
    ) -> Result<Vec<Result<Arc<Held>>>> {
        if !(1..=MAX_FORKS).contains(&count) {
            let why = format!("count is {count}; it must be between 1 and {MAX_FORKS}");
            return Err(refuse(ErrorCode::PolicyViolation, why));
        }
        let (flows, who, id) = (self.clone(), who.clone(), id.clone());
        detached(async move {
            let (asked, basis, fillings) = flows.fork_files(&who, &id, count).await?;
            let request = LiveRequest { timeout_s, dedup: None, snapshot: None, ..asked };
            let made = fillings.into_iter().map(|filling| {
                let (flows, who, request) = (flows.clone(), who.clone(), request.clone());
                let ground = Ground::filled(basis.clone(), filling);
                tokio::spawn(async move { flows.live_make(&who, &request, Some(ground)).await })
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
    ) -> Result<(LiveRequest, Basis, Vec<Filling>)> {
        if let Some(PausedInto { snapshot, .. }) =
            self.ledger.live().paused_into(&who.tenant, id).await?
        {
            self.live_asked()?;
            let (mut asked, mut fillings) = (None, Vec::new());
            for _ in 0..count {
                let (again, filling) = self.live_opened(&who.tenant, &snapshot).await?;
                asked = Some((self.basis_again(&again)?, again.request));
                // Two sandboxes with one memory would have the same secrets and numbers in it.
                fillings.push(filling.files_alone());
            }
            let asked = asked.map(|(basis, asked)| (asked, basis, fillings));
            return asked.ok_or_else(over);
        }
        let held = self.live_held(who, id).await?;
        let kept = self.keep_and_go_on(&held, held.again()).await?;
        let opened = (0..count).map(|_| kept.filling(&held.tenant));
        let fillings: std::io::Result<Vec<Filling>> = opened.collect();
        let fillings = fillings.map_err(|why| refuse(ErrorCode::Unavailable, why.to_string()))?;
        let again = held.again();
        self.fits(&again)?;
        Ok((again.request, held.basis().clone(), fillings))
    }

    /// Deletes a snapshot of the caller's tenant: its key is destroyed, and its file removed.
    ///
    /// # Errors
    /// There is none of this id, or a sandbox is paused into it.
    pub async fn snapshot_delete(&self, who: &Principal, id: &SnapshotId) -> Result<()> {
        let audit = Audit::by(who, "snapshot.delete", id.as_str());
        self.ledger.snapshots().erase(id, &audit).await?;
        self.snapshots_tidy().await;
        Ok(())
    }
}

pub(super) fn damaged(id: &SnapshotId, why: &str) -> Error {
    conflict(format!("the snapshot {id} cannot be used: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn traffic_gives_the_time_that_was_asked_for_and_never_less_than_the_default() {
        let by = |by_traffic, timeout_s| Wish { by_traffic, ..Wish::of(timeout_s, None, None) };
        for (before, lives) in [(None, 300), (Some(2), 300), (Some(3_600), 3_600)] {
            assert_eq!(by(true, None).lives_s(before), lives);
        }
        assert_eq!(by(false, Some(2)).lives_s(Some(3_600)), 2);
        assert_eq!(by(false, None).lives_s(Some(3_600)), 300);
    }
}
