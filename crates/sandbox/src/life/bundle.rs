//! What of a sandbox lies on the host before its runtime starts: directory, layer, root or disk, configuration.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::PathBuf;
use std::sync::Arc;

use cofferdam_ambient::random;
use cofferdam_contracts::id::Digest;

use super::error::{BootError, fault, make_dir};
use crate::class::input_mounts::ResolvedInputs;
use crate::class::{LaunchResult, ReadyStart};
use crate::host::crypt::Volume;
use crate::host::file_lease::FileLease;
use crate::host::hostpath::HostSource;
use crate::host::idrange::IdRange;
use crate::host::traces::{self, Traces};
use crate::host::{base, limit, live, mounts};
use crate::images;
use crate::life::memory::StoredMemory;
use crate::life::root::{Root, RootIds};
use crate::life::snapshot::InitialFiles;
use crate::machine::{Disk, ImageCache, MachineFiles, MemoryFingerprint, Parts};
use crate::oci;
use crate::spec::facts::HostFacts;
use crate::spec::plan::{DEFAULT_WORKDIR, Plan};
use crate::spec::service;

/// Workers that stop in the very moment of a start.
const PARENT_TRIES: usize = 3;

/// What came of making a bundle.
#[derive(Default)]
pub(super) struct BundleOutcome {
    /// Keeps the image that it lies on.
    pub hold: Option<images::RootGuard>,
    /// The base as it was before.
    pub digest: Option<Digest>,
    /// The cgroups that were made.
    pub groups: Vec<PathBuf>,
    /// Of a machine.
    pub disk: Option<Arc<Disk>>,
    /// Its ids, where it has some of its own.
    pub ids: Option<IdRange>,
    /// What its kernel goes on with, until it does.
    pub memory: Option<StoredMemory>,
    /// The same of a machine.
    pub stored: Option<File>,
    /// Of a machine, with the files that it begins with.
    pub parts: Option<Parts>,
}

/// What lies on the host before the runtime starts.
pub(super) struct Bundle {
    traces: Traces,
    base: HostSource,
    /// MiB of the writable layer; `None`: nothing of the sandbox lies on this host.
    layer_mb: Option<u64>,
    /// Whether the layer lies encrypted on disk.
    large: bool,
    /// What a machine is made of; it mounts its root itself.
    pub parts: Option<Parts>,
    /// The fingerprint that a stored memory of that machine must have.
    pub mark: Option<MemoryFingerprint>,
    /// The base's digest, where the host knows it.
    known: Option<Digest>,
    /// Whether it has users of its own.
    has_users: bool,
    root: Root,
    /// The cgroups to make, where the runtime makes none.
    groups: Option<limit::Groups>,
}

/// The project that a command works in, where that has its own path: `/work` leads there too, unless something else is there.
fn work_of(plan: &Plan, resolved: &ResolvedInputs<'_>) -> Option<String> {
    let cwd = &plan.task.cwd;
    let is_mount = |at: &str| resolved.mounts.iter().any(|mount| mount["destination"] == at);
    (is_mount(cwd) && !is_mount(DEFAULT_WORKDIR)).then(|| cwd.clone())
}

impl Bundle {
    /// The bundle of a plan with these inputs; `known` is the base's digest, where the host knows it.
    pub(super) fn of(
        plan: &Plan,
        base: &HostSource,
        resolved: &ResolvedInputs<'_>,
        known: Option<Digest>,
        facts: &HostFacts,
    ) -> Self {
        let layout = plan.isolation().launch.host_layout(plan, base, &resolved.given, facts);
        let services = plan.services.iter().filter(|service| service.root().is_some());
        let root = Root {
            traces: plan.traces.clone(),
            guest: plan.guest.clone(),
            base: base.clone(),
            shares: resolved.shares.clone(),
            apart: layout.apart,
            binds_tmp: layout.binds_tmp,
            groups: layout.shown_groups,
            user: plan.task.user.filter(|user| user.uid != 0),
            work: work_of(plan, resolved),
            services: services.map(|service| service::root_of(&service.name)).collect(),
            dirs: resolved.dirs.clone(),
            overlays: resolved.overlays.clone(),
            mounts: resolved.mounts.clone(),
            config: plan.config.clone(),
            runtime: plan.runtime.clone(),
        };
        let made_of = layout.parts.as_ref().zip(facts.machine.as_ref());
        Self {
            traces: plan.traces.clone(),
            base: base.clone(),
            layer_mb: layout.layer_mb,
            large: plan.large,
            mark: made_of.map(|(parts, machine)| parts.mark(plan, machine)),
            parts: layout.parts,
            known,
            has_users: layout.has_users,
            root,
            groups: layout.groups,
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
        early: ReadyStart,
        ahead: &mut Option<LaunchResult>,
    ) -> Result<Option<FileLease>, BootError> {
        let path = oci::file_of(&self.traces.dir);
        let unread = FileLease::make(&path).map_err(fault("making", &path))?;
        if unread.is_some() {
            *ahead = Some(early()?);
        }
        Ok(unread)
    }

    /// Makes it, once the image that it lies on is held. A runtime that is ready is started first: it loads meanwhile.
    pub(super) fn make(
        &self,
        facts: &HostFacts,
        images: &ImageCache,
        filling: Option<InitialFiles>,
        early: Option<ReadyStart>,
        ahead: &mut Option<LaunchResult>,
    ) -> Result<BundleOutcome, BootError> {
        let name = PathBuf::from(self.base.name());
        let hold = images::hold(&facts.state_dir, &self.base);
        let hold = hold.map_err(fault("using the image's root", &name))?;
        self.make_dir()?;
        let unread = early.map(|early| self.start_ahead(early, ahead)).transpose()?.flatten();
        let Some(layer_mb) = self.layer_mb else {
            return Ok(BundleOutcome {
                hold,
                parts: self.parts.clone(),
                ..BundleOutcome::default()
            });
        };
        let ids = self.take_ids(filling.as_ref(), facts)?;
        for path in [&self.traces.layer, &self.traces.root] {
            make_dir(path, 0o700)?;
        }
        let digest = match &self.known {
            Some(known) => Some(known.clone()),
            None => base::tree_digest(&self.base.path()).map_err(fault("describing", &name))?,
        };
        self.make_layer(layer_mb, filling.as_ref(), facts)?;
        let groups = self.groups.as_ref().map_or(Ok(Vec::new()), limit::Groups::make);
        let groups = groups.map_err(|(path, error)| fault("limiting", &path)(error))?;
        let disk = self.parts.as_ref().map(|parts| parts.disk(images)).transpose();
        let disk = disk.map_err(fault("describing what is shown on", &name))?;
        let made = BundleOutcome { hold, digest, groups, disk, ids, ..BundleOutcome::default() };
        match &self.parts {
            Some(parts) => self.with_machine(parts, made, filling),
            None => self.with_root(made, filling, unread, facts),
        }
    }

    /// Ids of its own, where it has some: those of its files, or new ones.
    fn take_ids(
        &self,
        filling: Option<&InitialFiles>,
        facts: &HostFacts,
    ) -> Result<Option<IdRange>, BootError> {
        match (&facts.ids, filling.and_then(InitialFiles::layer)) {
            (Ok(_), Some(plain)) if self.has_users => Ok(plain.ids()),
            (Ok(ranges), None) if self.has_users => {
                let dir = &self.traces.dir;
                ranges.take(dir).map(Some).map_err(fault("taking ids of its own for", dir))
            }
            _ => Ok(None),
        }
    }

    /// Mounts the writable layer, with the files of a pause or empty, and plants the sentinel.
    fn make_layer(
        &self,
        layer_mb: u64,
        filling: Option<&InitialFiles>,
        facts: &HostFacts,
    ) -> Result<(), BootError> {
        let layer = &self.traces.layer;
        if let Some(plain) = filling.and_then(InitialFiles::layer) {
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
        fs::write(&sentinel, random::secret_hex(32)).map_err(fault("writing", &sentinel))
    }

    /// A machine goes on with its memory, or begins with files, or with nothing.
    fn with_machine(
        &self,
        parts: &Parts,
        made: BundleOutcome,
        mut filling: Option<InitialFiles>,
    ) -> Result<BundleOutcome, BootError> {
        if let (Some(mark), Some(disk)) = (&self.mark, &made.disk) {
            let stored = filling.as_mut().map(|filling| filling.machine(|| mark.with(disk)));
            let stored = stored.transpose().map_err(|source| BootError::Fill { source })?;
            if let Some(stored) = stored.flatten() {
                let parts = Some(parts.clone().going_on());
                return Ok(BundleOutcome { stored: Some(stored), parts, ..made });
            }
            // It goes on with no memory of another class.
            filling = filling.map(InitialFiles::files_alone);
        }
        let memory = self.memory(filling.as_mut())?;
        let parts = match filling {
            Some(InitialFiles::Stream(files)) => {
                let files = files.into_files().map_err(|source| BootError::Fill { source })?;
                parts.clone().filled(MachineFiles::new(files))
            }
            _ => parts.clone(),
        };
        Ok(BundleOutcome { memory, parts: Some(parts), ..made })
    }

    /// A root of this host, with the files that it begins with.
    fn with_root(
        &self,
        made: BundleOutcome,
        mut filling: Option<InitialFiles>,
        unread: Option<FileLease>,
        facts: &HostFacts,
    ) -> Result<BundleOutcome, BootError> {
        let memory = self.memory(filling.as_mut())?;
        let ids = facts.ids.as_ref().ok().zip(made.ids.as_ref());
        let ids = ids.map(|(ranges, taken)| RootIds { ranges, taken });
        self.root.mount(ids, filling, unread)?;
        Ok(BundleOutcome { memory, ..made })
    }

    /// What its kernel goes on with, written where the runtime looks for it.
    fn memory(
        &self,
        filling: Option<&mut InitialFiles>,
    ) -> Result<Option<StoredMemory>, BootError> {
        let memory = filling.map(|filling| filling.memory(&self.traces.dir)).transpose();
        Ok(memory.map_err(|source| BootError::Fill { source })?.flatten())
    }
}
