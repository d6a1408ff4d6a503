//! The root file system of a sandbox, put together on this host before its runtime starts.
//!
//! ```text
//! layer (tmpfs)   upper, work ----+
//! agent, base  --shifted?--> lowers -+-> overlay at <dir>/root
//! host's /usr  --shifted?--> overlay, read-only, at its own place in there
//! inputs       --shifted?--> at their places in there, or left to the runtime
//! ```
//! *Shifted* where the sandbox has ids of its own: files of the host then have the same owners inside as outside, by the
//! sandbox's ids. What the sandbox writes itself has those ids already.

use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _, chown};
use std::path::{Path, PathBuf};

use cofferdam_guest::wire::User;
use serde_json::Value;

use crate::class::input_mounts::{Overlay, Share};
use crate::host::cgroup::OwnGroup;
use crate::host::file_lease::FileLease;
use crate::host::guest::AGENT_PATH;
use crate::host::hostpath::{HostSource, mount_at};
use crate::host::idrange::{self, IdRange, IdRanges};
use crate::host::runtime::Runtime;
use crate::host::tenant_root::{self, TenantRoot};
use crate::host::traces::Traces;
use crate::host::{devices, live, mounts, upper as stream};
use crate::life::error::{BootError, fault, make_dir};
use crate::life::inside::{self, InputOwners};
use crate::life::service_root;
use crate::life::snapshot::InitialFiles;
use crate::oci;
use crate::spec::plan::DEFAULT_WORKDIR;

/// The sandbox's root, and nobody else, gets through its directory.
const THROUGH: u32 = 0o710;

/// Whom the kernel shows for an id that a mount does not map.
const OVERFLOW_ID: u32 = 65_534;
const MODE_BITS: u32 = 0o7777;

/// What a root is made of.
pub(crate) struct Root {
    pub traces: Traces,
    pub guest: PathBuf,
    pub base: HostSource,
    pub shares: Vec<Share>,
    /// Directories of the host that are shown read-only in it.
    pub apart: Vec<PathBuf>,
    /// Whether its `/tmp` is bound by its runtime, from beside the root.
    pub binds_tmp: bool,
    /// What its programs see of its cgroups.
    pub groups: Vec<OwnGroup>,
    /// Whom the task runs as, where that is not root.
    pub user: Option<User>,
    /// The project's own place, where `/work` is it as well.
    pub work: Option<String>,
    pub dirs: Vec<PathBuf>,
    pub overlays: Vec<Overlay>,
    /// Where services have roots of their own.
    pub services: Vec<String>,
    /// Mounts of inputs, as an OCI configuration has them.
    pub mounts: Vec<Value>,
    pub config: Value,
    pub runtime: Runtime,
}

/// Ids of a sandbox's own.
#[derive(Clone, Copy)]
pub(crate) struct RootIds<'a> {
    /// Those of the host for all sandboxes.
    pub ranges: &'a IdRanges,
    /// Those of this one.
    pub taken: &'a IdRange,
}

impl Root {
    /// Mounts it and writes its configuration, for which its runtime may wait already.
    pub(crate) fn mount(
        &self,
        ids: Option<RootIds<'_>>,
        filling: Option<InitialFiles>,
        unread: Option<FileLease>,
    ) -> Result<(), BootError> {
        let Traces { dir, layer, root, .. } = &self.traces;
        let (upper, work) = (layer.join("upper"), layer.join("work"));
        let has_files = filling.as_ref().is_some_and(InitialFiles::is_layer);
        if !has_files {
            make_dir(&upper, 0o755)?;
        }
        make_dir(&work, 0o700)?;
        for path in &self.dirs {
            let made = DirBuilder::new().recursive(true).mode(0o755).create(path);
            made.map_err(fault("making", path))?;
        }
        if let Some(RootIds { taken, .. }) = ids {
            for path in self.dirs.iter().chain((!has_files).then_some(&upper)) {
                own(path, taken.first).map_err(fault("owning", path))?;
            }
            through(dir, taken.first).map_err(fault("opening", dir))?;
        }
        if let Some(InitialFiles::Stream(from)) = filling {
            let first = ids.map_or(0, |ids| ids.taken.first);
            let files = from.into_files();
            let filled = files.and_then(|mut files| stream::unpack(&upper, first, &mut files));
            filled.map_err(|source| BootError::Fill { source })?;
        }
        let mut below =
            LowerLayers { dir: dir.join("below"), ids: ids.map(|ids| ids.taken), shown: 0 };
        let base = self.place()?;
        let lowers = [below.layer(&self.guest)?, below.layer(&base)?];
        mounts::mount_overlay(root, &lowers, &upper, &work)
            .map_err(fault("mounting an overlay at", root))?;
        let first = ids.map_or(0, |ids| ids.taken.first);
        let tree = TenantRoot::open(root, first).map_err(fault("opening", root))?;
        if let Some(name) = tree.displaced().map_err(fault("looking into", root))? {
            return Err(BootError::Displaced(name.to_owned()));
        }
        // gVisor remembers what lies in its root by path: two mounts of one tree would differ in it.
        if let Some(at) = self.work.as_ref().filter(|_| self.binds_tmp) {
            tree.link(DEFAULT_WORKDIR, at).map_err(fault("making a link in", root))?;
        }
        self.show_host(&tree, &mut below)?;
        for overlay in &self.overlays {
            self.show_through(overlay, &mut below)?;
        }
        drop(below);
        self.configure(&tree, ids, unread)
    }

    /// Directories of the host, as overlays of their own.
    fn show_host(&self, tree: &TenantRoot, below: &mut LowerLayers<'_>) -> Result<(), BootError> {
        let Traces { layer, .. } = &self.traces;
        if self.apart.is_empty() {
            return Ok(());
        }
        let empty = layer.join("none");
        make_dir(&empty, 0o755)?;
        for path in &self.apart {
            let from = below.layer(path)?;
            let at = inside::place(tree, path)?;
            mounts::mount_apart(&from, &tenant_root::held(&at), &empty)
                .map_err(fault("mounting an overlay in the sandbox at", path))?;
        }
        Ok(())
    }

    /// An input, whose owner is the task's user. A host without ids for sandboxes may be unable to map owners: there the top
    /// directory alone belongs to that user.
    fn show_through(
        &self,
        overlay: &Overlay,
        below: &mut LowerLayers<'_>,
    ) -> Result<(), BootError> {
        let first = below.ids.map_or(0, |taken| taken.first);
        let top = overlay.user.map(|User { uid, gid }| User { uid: first + uid, gid: first + gid });
        let over = |lower: &Path| {
            let of = overlay.of.clone();
            self.mount_over(overlay, lower, top).map_err(|source| BootError::Over { of, source })
        };
        let Some(user) = overlay.user else { return over(&below.layer(&overlay.lower)?) };
        let holder = self.guest.join(AGENT_PATH.trim_start_matches('/'));
        match below.given(&overlay.lower, user, &holder).and_then(|lower| over(&lower)) {
            Err(error) if below.ids.is_none() => {
                tracing::warn!(%error, "owners of an input cannot be mapped to the task's user");
                over(&overlay.lower)
            }
            done => done,
        }
    }

    /// An input, changed in the layer or not at all. `top` is whom its top directory belongs to, if that is known.
    fn mount_over(&self, overlay: &Overlay, lower: &Path, top: Option<User>) -> io::Result<()> {
        let Overlay { at, changes, moves, .. } = overlay;
        if let Some((upper, work)) = changes {
            as_top(lower, upper, top)?;
            if *moves {
                return mounts::mount_overlay_with_moves(at, lower, upper, work);
            }
            return mounts::mount_overlay(at, &[lower.to_owned()], upper, work);
        }
        let empty = self.traces.shares().join("none");
        for dir in [&empty, at] {
            live::private_dir(dir)?;
        }
        mounts::mount_apart(lower, at, &empty)
    }

    /// Inputs are the runtime's to mount, but where they are shifted.
    fn configure(
        &self,
        tree: &TenantRoot,
        ids: Option<RootIds<'_>>,
        unread: Option<FileLease>,
    ) -> Result<(), BootError> {
        let layer = &self.traces.layer;
        let beside = self.traces.beside();
        let mut config = self.config.clone();
        match ids {
            Some(RootIds { ranges, taken }) => {
                let owners = self.owners(ranges, taken);
                for mount in self.mounts.iter().chain(&self.at_work()) {
                    inside::show(tree, layer, &self.overlays, mount, &owners)?;
                }
                for root in &self.services {
                    service_root::prepare(tree, Path::new(root))?;
                }
                oci::own_users(&mut config, &self.runtime, taken);
                if self.binds_tmp {
                    // Its kernel has devices and masks of its own.
                    inside::bind_tmp(tree, &beside)?;
                    return self.write(&config, unread);
                }
                let has_devices = ranges.foreign_nodes().is_none();
                let names: Vec<&str> = self.groups.iter().filter_map(|group| group.name).collect();
                inside::make_beside(layer, &names, &beside, taken, has_devices)?;
                oci::own_masks(&mut config, &devices::nothing(&beside));
                oci::own_groups(&mut config, &self.groups, &devices::groups(&beside));
                if has_devices {
                    // Shared memory on a disk is none.
                    let dev = devices::dev(&beside);
                    oci::own_devices(&mut config, &dev, live::is_memory(layer));
                }
            }
            None => {
                if self.binds_tmp {
                    inside::bind_tmp(tree, &beside)?;
                }
                if let Some(Value::Array(mounts)) = config.get_mut("mounts") {
                    mounts.extend(self.mounts.iter().cloned().chain(self.at_work()));
                }
            }
        }
        self.write(&config, unread)
    }

    /// Whose the inputs are that are mounted without an overlay.
    fn owners<'a>(&self, ranges: &'a IdRanges, taken: &'a IdRange) -> InputOwners<'a> {
        InputOwners { ranges, taken, user: self.user, given: self.traces.shares() }
    }

    /// The project once more, at `/work`.
    fn at_work(&self) -> Option<Value> {
        let own = self.work.as_ref().filter(|_| !self.binds_tmp)?;
        let mut mount = self.mounts.iter().find(|mount| mount["destination"] == **own)?.clone();
        *mount.get_mut("destination")? = DEFAULT_WORKDIR.into();
        Some(mount)
    }

    fn write(&self, config: &Value, unread: Option<FileLease>) -> Result<(), BootError> {
        let (path, text) = (oci::file_of(&self.traces.dir), config.to_string());
        let written = match unread {
            Some(unread) => unread.write_and_release(&text),
            None => fs::write(&path, text),
        };
        written.map_err(fault("writing", &path))
    }

    /// Mounts what a tenant named at places of ours, and says where the base is.
    fn place(&self) -> Result<PathBuf, BootError> {
        let shares = self.traces.shares();
        let base = match &self.base {
            HostSource::Ours(path) => path.clone(),
            HostSource::Given(_) => shares.join("base"),
        };
        if self.shares.is_empty() && !matches!(self.base, HostSource::Given(_)) {
            return Ok(base);
        }
        make_dir(&shares, 0o700)?;
        if let HostSource::Given(opened) = &self.base {
            mount_at(opened, &base, true).map_err(fault("mounting the root of", &base))?;
        }
        for Share { opened, at, readonly } in &self.shares {
            mount_at(opened, at, *readonly)
                .map_err(|source| BootError::Share { said: opened.said().clone(), source })?;
        }
        Ok(base)
    }
}

fn own(path: &Path, first: u32) -> io::Result<()> {
    chown(path, Some(first), Some(first))
}

/// Gives the top of an overlay the mode and, where no other one is known, the owner of what it covers, as the kernel does for
/// all that lies in it. An owner whom the sandbox has no id for stays its root.
fn as_top(lower: &Path, upper: &Path, owner: Option<User>) -> io::Result<()> {
    let found = fs::metadata(lower)?;
    let known = |id: u32| (id != OVERFLOW_ID).then_some(id);
    let (uid, gid) = match owner {
        Some(User { uid, gid }) => (Some(uid), Some(gid)),
        None => (known(found.uid()), known(found.gid())),
    };
    chown(upper, uid, gid)?;
    // Last: a change of the owner takes set-id bits away.
    fs::set_permissions(upper, Permissions::from_mode(found.mode() & MODE_BITS))
}

fn through(dir: &Path, first: u32) -> io::Result<()> {
    chown(dir, None, Some(first))?;
    fs::set_permissions(dir, Permissions::from_mode(THROUGH))
}

/// Lower layers while their overlay is mounted: it has copies of their mounts, which outlive these. They lie in a mount of
/// their directory's own, so that all go at once: after each change of its mounts the kernel waits for every processor.
struct LowerLayers<'a> {
    dir: PathBuf,
    ids: Option<&'a IdRange>,
    shown: usize,
}

impl LowerLayers<'_> {
    fn layer(&mut self, path: &Path) -> Result<PathBuf, BootError> {
        let Some(taken) = self.ids else { return Ok(path.to_owned()) };
        self.shifted(path, &taken.space)
    }

    /// What a tenant named, where its owner is this user of the sandbox.
    fn given(&mut self, path: &Path, user: User, holder: &Path) -> Result<PathBuf, BootError> {
        let found = fs::metadata(path).map_err(fault("looking at", path))?;
        let owner = User { uid: found.uid(), gid: found.gid() };
        let space = idrange::exchanged(holder, self.ids, owner, user);
        self.shifted(path, &space.map_err(fault("mapping the owner of", path))?)
    }

    fn shifted(&mut self, path: &Path, space: &OwnedFd) -> Result<PathBuf, BootError> {
        if self.shown == 0 {
            make_dir(&self.dir, 0o700)?;
            let own = idrange::shifted(&self.dir, None, false);
            let own = own.and_then(|tree| idrange::attach(&tree, &self.dir));
            own.map_err(fault("mounting", &self.dir))?;
        }
        let at = self.dir.join(self.shown.to_string());
        self.shown += 1;
        make_dir(&at, 0o700)?;
        let tree = idrange::shifted(path, Some(space), true).map_err(fault("shifting", path))?;
        idrange::attach(&tree, &at).map_err(fault("attaching", path))?;
        Ok(at)
    }
}

impl Drop for LowerLayers<'_> {
    fn drop(&mut self) {
        if self.shown > 0 {
            // What stays is unmounted with the sandbox.
            let _ = mounts::detach(&self.dir);
        }
    }
}
