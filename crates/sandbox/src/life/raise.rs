//! Making a sandbox up to its agent's first answer.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::PathBuf;
use std::sync::Arc;

use cofferdam_ambient::random;
use cofferdam_contracts::id::Digest;

use super::error::{BootError, fault, make_dir};
use crate::class::microvm::{Disk, ImageCache, MachineFiles, Mark, Parts, Storable};
use crate::class::shown::Resolved;
use crate::host::crypt::Volume;
use crate::host::hostpath::Place;
use crate::host::idrange::Taken;
use crate::host::setid::Through;
use crate::host::task::blocking;
use crate::host::traces::{self, Traces};
use crate::host::unread::Unread;
use crate::host::{base, limit, live, mounts};
use crate::images;
use crate::life::begin::begin;
use crate::life::hold::{Ground, Ready, StartedRuntime, ready};
use crate::life::host::Host;
use crate::life::intake::Intake;
use crate::life::keep::Filling;
use crate::life::memory::StoredMemory;
use crate::life::raised::Raised;
use crate::life::root::{Root, RootIds};
use crate::life::sandbox::KillHandle;
use crate::life::wipe::{self, Below, Subject};
use crate::oci;
use crate::spec::facts::HostFacts;
use crate::spec::plan::{DEFAULT_WORKDIR, Plan};

/// Workers that stop in the very moment of a start.
const PARENT_TRIES: usize = 3;

/// What a sandbox is made of beside its plan.
pub(crate) struct BootParts<'a> {
    /// Its inputs.
    pub resolved: &'a Resolved<'a>,
    pub base: Place,
    /// What it writes through to.
    pub through: Through,
    pub filling: Option<Filling>,
}

/// Makes what the plan says of these parts, up to its agent's first answer. What there is to wipe
/// stands in the subject, whatever the end.
pub(crate) async fn raise(
    host: &Host,
    facts: &Arc<HostFacts>,
    plan: &Plan,
    parts: BootParts<'_>,
    subject: &mut Subject,
    intake: &Intake,
) -> Result<Raised, BootError> {
    let BootParts { resolved, base, through, filling } = parts;
    let known = facts.base_digest.clone().filter(|_| plan.base.is(&facts.base));
    let bundle = Bundle::of(plan, &base, resolved, known, facts);
    let mark = bundle.mark.clone();
    let (held, images, intake) = (Arc::clone(facts), host.machines().images(), intake.clone());
    if filling.as_ref().is_some_and(Filling::is_layer) && bundle.parts.is_some() {
        return Err(BootError::Unfillable(plan.class.as_str()));
    }
    // Files to fill in take longer than a runtime may be kept waiting.
    let is_read = matches!(&filling, Some(Filling::Stream(_)));
    let is_early = !is_read && plan.isolation().launch.starts_ahead();
    let early = is_early.then(|| ready(plan, &[], None, facts, None, None)).transpose()?;
    let (made, ahead) = blocking(move || {
        let mut ahead = None;
        (intake.within(|| bundle.make(&held, &images, filling, early, &mut ahead)), ahead)
    })
    .await;
    let Made { hold, digest, groups, disk, ids, memory, stored, parts } =
        match made.ok_or(BootError::Closed).flatten() {
            Ok(made) => made,
            Err(error) => {
                if let Some(started) = ahead {
                    started.life.killed().await;
                }
                return Err(error);
            }
        };
    subject.base = Some(Below { name: base.name(), at: Ok(base), digest });
    subject.runtime_reaped = false;
    subject.ids = ids;
    subject.through = through;
    let heard = plan.isolation().launch.hear(&plan.traces);
    let heard = heard.map_err(fault("listening in", &plan.traces.dir))?;
    let memory_dir = memory.as_ref().map(|memory| memory.dir.as_path());
    let ground = Ground {
        groups: &groups,
        disk,
        parts,
        mounts: &resolved.mounts,
        memory: memory_dir,
        stored: stored.as_ref(),
    };
    let (life, agent) = begin(host, facts, plan, &ground, ahead).await?;
    let went_on = memory.is_some() || stored.is_some();
    if went_on {
        // New commands get other names than those that go on.
        agent.commands().await.map_err(|source| BootError::Woken { source })?;
    }
    let kill = match life.line() {
        Some(line) => KillHandle::of_line(line),
        None => {
            let (observed, init) = wipe::observe(facts, &plan.traces, Some(plan.class))
                .ok_or(BootError::Unobserved)?;
            let settled = plan.isolation().supervision.settle(plan, facts);
            settled.map_err(|(path, error)| fault("limiting", &path)(error))?;
            subject.observed = Some(observed);
            if plan.isolation().supervision.has_own_mounts() {
                // The kernel waits for every processor, and nobody else has to.
                let beside = plan.traces.beside();
                drop(tokio::spawn(blocking(move || mounts::detach(&beside))));
            }
            KillHandle::new(init)
        }
    };
    let storable = match (life.orders(), mark, ground.disk) {
        (Some(orders), Some(mark), Some(disk)) => Some(Storable { orders, mark, disk }),
        _ => None,
    };
    Ok(Raised { hold, life, agent, kill, heard, went_on, storable })
}

/// What came of making a bundle.
struct Made {
    /// Keeps the image that it lies on.
    hold: Option<images::RootHold>,
    /// The base as it was before.
    digest: Option<Digest>,
    /// The cgroups that were made.
    groups: Vec<PathBuf>,
    /// Of a machine.
    disk: Option<Arc<Disk>>,
    /// Its ids, where it has some of its own.
    ids: Option<Taken>,
    /// What its kernel goes on with, until it does.
    memory: Option<StoredMemory>,
    /// The same of a machine.
    stored: Option<File>,
    /// Of a machine, with the files that it begins with.
    parts: Option<Parts>,
}

/// What lies on the host before the runtime starts.
struct Bundle {
    traces: Traces,
    base: Place,
    /// MiB of the writable layer; `None`: nothing of the sandbox lies on this host.
    layer_mb: Option<u64>,
    /// Whether the layer lies encrypted on disk.
    large: bool,
    /// What a machine is made of; it mounts its root itself.
    parts: Option<Parts>,
    /// What a memory of that machine goes on with.
    mark: Option<Mark>,
    /// The base's digest, where the host knows it.
    known: Option<Digest>,
    /// Whether it has users of its own.
    has_users: bool,
    root: Root,
    /// The cgroups to make, where the runtime makes none.
    groups: Option<limit::Groups>,
}

/// The project that a command works in, where that has its own path: `/work` leads there too, unless something else is there.
fn work_of(plan: &Plan, resolved: &Resolved<'_>) -> Option<String> {
    let cwd = &plan.task.cwd;
    let is_mount = |at: &str| resolved.mounts.iter().any(|mount| mount["destination"] == at);
    (is_mount(cwd) && !is_mount(DEFAULT_WORKDIR)).then(|| cwd.clone())
}

impl Bundle {
    fn of(
        plan: &Plan,
        base: &Place,
        resolved: &Resolved<'_>,
        known: Option<Digest>,
        facts: &HostFacts,
    ) -> Self {
        let footing = plan.isolation().launch.footing(plan, base, &resolved.given, facts);
        let root = Root {
            traces: plan.traces.clone(),
            guest: plan.guest.clone(),
            base: base.clone(),
            shares: resolved.shares.clone(),
            apart: footing.apart,
            binds_tmp: footing.binds_tmp,
            groups: footing.shown_groups,
            user: plan.task.user.filter(|user| user.uid != 0),
            work: work_of(plan, resolved),
            dirs: resolved.dirs.clone(),
            overlays: resolved.overlays.clone(),
            mounts: resolved.mounts.clone(),
            config: plan.config.clone(),
            runtime: plan.runtime.clone(),
        };
        let made_of = footing.parts.as_ref().zip(facts.machine.as_ref());
        Self {
            traces: plan.traces.clone(),
            base: base.clone(),
            layer_mb: footing.layer_mb,
            large: plan.large,
            mark: made_of.map(|(parts, machine)| parts.mark(plan, machine)),
            parts: footing.parts,
            known,
            has_users: footing.has_users,
            root,
            groups: footing.groups,
        }
    }

    /// Makes its directory, and what is above it: a worker that stops takes the empty parents away
    /// while another may be about to use them.
    fn make_dir(&self) -> Result<(), BootError> {
        let Traces { live, runtime_root, dir, .. } = &self.traces;
        let make = || -> io::Result<()> {
            live::make(live)?;
            live::passage(&traces::sandboxes(live))?;
            live::private_dir(runtime_root)?;
            DirBuilder::new().mode(0o700).create(dir)
        };
        let mut made = make();
        for _ in 0..PARENT_TRIES {
            match &made {
                Err(error) if error.kind() == io::ErrorKind::NotFound => made = make(),
                _ => break,
            }
        }
        made.map_err(fault("making", dir))
    }

    /// Starts the runtime, which waits for its configuration; `None`: here nothing can make it wait.
    fn start_ahead(
        &self,
        early: Ready,
        ahead: &mut Option<StartedRuntime>,
    ) -> Result<Option<Unread>, BootError> {
        let path = oci::file_of(&self.traces.dir);
        let unread = Unread::make(&path).map_err(fault("making", &path))?;
        if unread.is_some() {
            *ahead = Some(early.start()?);
        }
        Ok(unread)
    }

    /// Makes it, once the image that it lies on is held. A runtime that is ready is started first: it loads meanwhile.
    fn make(
        &self,
        facts: &HostFacts,
        images: &ImageCache,
        mut filling: Option<Filling>,
        early: Option<Ready>,
        ahead: &mut Option<StartedRuntime>,
    ) -> Result<Made, BootError> {
        let name = PathBuf::from(self.base.name());
        let hold = images::hold(&facts.state_dir, &self.base);
        let hold = hold.map_err(fault("using the image's root", &name))?;
        let Traces { layer, root, .. } = &self.traces;
        self.make_dir()?;
        let unread = early.map(|early| self.start_ahead(early, ahead)).transpose()?.flatten();
        let Some(layer_mb) = self.layer_mb else {
            let (digest, groups, disk, ids) = (None, Vec::new(), None, None);
            let (memory, stored, parts) = (None, None, self.parts.clone());
            return Ok(Made { hold, digest, groups, disk, ids, memory, stored, parts });
        };
        let plain = filling.as_ref().and_then(Filling::layer);
        let ids = match (self.has_users, &facts.ids) {
            // Those of its files.
            (true, Ok(_)) if plain.is_some() => plain.and_then(|plain| plain.ids()),
            (true, Ok(ranges)) => {
                let dir = &self.traces.dir;
                Some(ranges.take(dir).map_err(fault("taking ids of its own for", dir))?)
            }
            _ => None,
        };
        for path in [layer, root] {
            make_dir(path, 0o700)?;
        }
        let digest = match &self.known {
            Some(known) => Some(known.clone()),
            None => base::tree_digest(&self.base.path()).map_err(fault("describing", &name))?,
        };
        if let Some(plain) = plain {
            // On a host without ranges of ids all files have the host's.
            let has_ids = self.has_users && facts.ids.is_ok();
            let attached = plain.attach(layer, layer_mb, &self.traces.dir, has_ids);
            attached.map_err(|source| BootError::Fill { source })?;
        } else if self.large {
            Volume::of(&self.traces).make(&facts.large, layer_mb)?;
        } else {
            let mount = match filling {
                Some(_) => mounts::mount_tmpfs_for_files,
                None => mounts::mount_tmpfs,
            };
            mount(layer, layer_mb)
                .map_err(|error| fault("mounting a tmpfs at", layer)(error.into()))?;
        }
        let sentinel = self.traces.sentinel();
        fs::write(&sentinel, random::secret_hex(32)).map_err(fault("writing", &sentinel))?;
        let groups = self.groups.as_ref().map_or(Ok(Vec::new()), limit::Groups::make);
        let groups = groups.map_err(|(path, error)| fault("limiting", &path)(error))?;
        let disk = self.parts.as_ref().map(|parts| parts.disk(images)).transpose();
        let disk = disk.map_err(fault("describing what is shown on", &name))?;
        if let (Some(parts), Some(mark), Some(disk)) = (&self.parts, &self.mark, &disk) {
            let stored = filling.as_mut().map(|filling| filling.machine(|| mark.with(disk)));
            let stored = stored.transpose().map_err(|source| BootError::Fill { source })?;
            if let Some(stored) = stored.flatten() {
                let (memory, stored) = (None, Some(stored));
                let parts = Some(parts.clone().going_on());
                return Ok(Made {
                    hold,
                    digest,
                    groups,
                    disk: Some(Arc::clone(disk)),
                    ids,
                    memory,
                    stored,
                    parts,
                });
            }
            // It goes on with no memory of another class.
            filling = filling.map(Filling::files_alone);
        }
        let memory = filling.as_mut().map(|filling| filling.memory(&self.traces.dir)).transpose();
        let memory = memory.map_err(|source| BootError::Fill { source })?.flatten();
        let parts = match (self.parts.clone(), filling) {
            (Some(parts), Some(Filling::Stream(files))) => {
                let files = files.into_files().map_err(|source| BootError::Fill { source })?;
                Some(parts.filled(MachineFiles::new(files)))
            }
            (None, filling) => {
                let ids = facts.ids.as_ref().ok().zip(ids.as_ref());
                let ids = ids.map(|(ranges, taken)| RootIds { ranges, taken });
                self.root.mount(ids, filling, unread)?;
                None
            }
            (parts, _) => parts,
        };
        Ok(Made { hold, digest, groups, disk, ids, memory, stored: None, parts })
    }
}
