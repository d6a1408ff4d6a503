//! Machines: a kernel of its own on virtual hardware, by QEMU or what is asked for in its place
//! ([`monitor`]). The class `microvm` decides what they are used for.
//!
//! ```text
//! worker                                     QEMU, as nobody, in our cgroups, without a network
//!   agent's client --- socket pair --------- virtio port --- init -> agent -> task
//!   disk's server  --- socket pair --------- virtio disk: the lower layers and the inputs, read-only
//!                                            memory: the task's, its writable layer, its kernel
//! ```
//! The machine has no network device. The worker serves its disk from trees of the host ([`tree`], [`erofs`],
//! [`nbd`]): nothing is copied and no file of the host is open in the emulator. Limits hold
//! twice: the machine's kernel holds the task's memory, processes and layer, and the host's cgroups
//! hold the emulator. Where the processor is emulated, a machine is stored once ([`stored_machine`], [`pool`])
//! and the next ones of its shape are restored. The machine of a sandbox is stored with it when the sandbox is paused ([`orders`],
//! [`fingerprint`]).

mod cpio;
mod disk;
mod elf;
mod erofs;
mod fingerprint;
mod kernel;
mod kvm;
mod launcher;
pub(crate) mod monitor;
mod nbd;
mod orders;
mod pool;
mod qemu;
mod qmp;
mod serve;
mod setup;
mod shape;
mod spare_machine;
mod stored_machine;
#[cfg(test)]
pub(crate) mod tests;
mod tree;
mod trial;
mod vhost;

use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use cofferdam_ambient::clock::Stopwatch;
use cofferdam_guest::setup::{GREETING, READY, SEED_BYTES, Setup, Tree};
use cofferdam_guest::wire::User;
use tokio::net::UnixStream;
use tokio::process::Command;

pub(crate) use disk::{CurrentDisk, Disk};
use erofs::Image;
pub(crate) use fingerprint::{MAX_MARK, MemoryFingerprint, differs};
pub(crate) use kernel::Absent;
pub(crate) use orders::{EmulatorOrders, Storable, most};
pub(crate) use pool::{MachineKey, Pool};
pub(crate) use qemu::InheritedFd;
use qemu::Start;
pub(crate) use serve::{empty, serve};
pub(crate) use setup::{MachineFiles, SetupError};
use shape::Shape;
pub(crate) use shape::host_limits;
pub(crate) use stored_machine::{MachineRestore, lend};
use tree::Node;

use crate::host::guest::AGENT_PIDS;
use crate::host::hostpath::HostSource;
use crate::host::runtime::Runtime;
use crate::spec::facts::HostFacts;
use crate::spec::machine::Machine;
use crate::spec::plan::{DEFAULT_WORKDIR, Plan};

/// From the start of a machine that boots a kernel, in software perhaps, to the agent's first answer, in ms: 1.5 s, and ten
/// times as long where every processor is taken.
pub(crate) const MACHINE_BOOT_MS: u64 = 60_000;
/// What a warm-up may use: the agent, one command, and a few files.
const REHEARSAL_BYTES: u64 = 64 * 1024 * 1024;
const REHEARSAL_PIDS: u64 = 32;
const REHEARSAL_FILES: u64 = 256;
/// A description of a root that does not change under us is used again for so long, then made anew: the
/// host's `/usr` changes when packages do.
const FRESH_MS: u64 = 30_000;
/// Descriptions that are kept: a worker's usual roots.
const MAX_KEPT: usize = 8;

/// Looks for all that machines are started from, by what is asked for in QEMU's place. Blocking.
pub(crate) fn detect(
    state: &Path,
    guest: &Path,
    kind: Option<monitor::Kind>,
) -> Result<(Machine, Runtime), Absent> {
    if !cfg!(target_arch = "x86_64") {
        return Err(("machines are made on x86-64 only".to_owned(), "nothing on this host"));
    }
    match kind {
        Some(kind) => monitor::detect(kind, state, guest),
        None => kernel::detect(state, guest),
    }
}

/// The emulator of a plan; `groups` are the cgroups that were made for it, and what is lent is that
/// of a stored machine, if it is one.
pub(crate) fn command(
    plan: &Plan,
    groups: &[PathBuf],
    machine: &Machine,
    lent: Option<&InheritedFd>,
) -> Command {
    qemu::command(&qemu::QemuInput {
        machine,
        qemu: &plan.runtime,
        groups,
        shape: Shape::of(plan, machine),
        id: plan.traces.id.as_str(),
        dir: &plan.traces.dir,
        start: &lent.map_or(Start::Boot, Start::Restore),
    })
}

/// A file or directory of the host that the task is shown.
#[derive(Debug, Clone)]
pub(crate) struct GuestMount {
    /// `None`: an empty directory.
    pub source: Option<HostSource>,
    pub target: String,
    pub writable: bool,
    /// Where its changes are shown inside.
    pub changes: Option<String>,
    /// Whom its owner is inside; `None`: every owner is shown as it is.
    pub user: Option<User>,
}

impl GuestMount {
    /// Something of the host; what has a place for its changes is writable.
    pub fn of(plan: &Plan, source: HostSource, target: &str, changes: Option<String>) -> Self {
        let user = plan.user_of(&source);
        let (source, target) = (Some(source), target.to_owned());
        Self { source, target, writable: changes.is_some(), changes, user }
    }

    /// A directory of the machine's own, empty at first, which is shown at a second place to be read.
    pub fn own(target: &str, shown: String) -> Self {
        Self {
            source: None,
            target: target.to_owned(),
            writable: true,
            changes: Some(shown),
            user: None,
        }
    }
}

/// Where the changes of a writable directory are shown inside, by its number.
pub(crate) fn changes_at(number: usize) -> String {
    format!("/.cofferdam/changes/{number}")
}

/// What a machine is made of, decided: its disk, and what its init is told.
#[derive(Debug, Clone)]
pub(crate) struct Parts {
    lowers: Vec<HostSource>,
    binds: Vec<PathBuf>,
    given: Vec<GuestMount>,
    setup: Setup,
    /// What it begins with.
    files: Option<MachineFiles>,
    /// Whether it goes on with a memory that was stored with its sandbox.
    goes_on: bool,
    /// Whether the lower layers stay as they are while this worker lives.
    kept: bool,
}

impl Parts {
    pub fn of(plan: &Plan, base: &HostSource, asked: &[GuestMount], facts: &HostFacts) -> Self {
        let lowers = vec![HostSource::Ours(plan.guest.clone()), base.clone()];
        let limits = plan.effective.limits;
        let binds = if plan.host_usr { facts.binds.clone() } else { Vec::new() };
        let shown = |(number, path): (usize, &PathBuf)| Tree {
            source: format!("/first/bind-{number}"),
            target: path.to_string_lossy().into_owned(),
            writable: false,
            changes: None,
        };
        let inside = |(number, given): (usize, &GuestMount)| Tree {
            source: format!("/second/{number}"),
            target: given.target.clone(),
            writable: given.writable,
            changes: given.changes.clone(),
        };
        let trees = binds.iter().enumerate().map(shown);
        let trees = trees.chain(asked.iter().enumerate().map(inside)).collect();
        Self {
            kept: plan.host_usr || plan.is_image,
            binds,
            given: asked.to_vec(),
            files: None,
            goes_on: false,
            setup: Setup {
                is_rehearsal: false,
                is_filled: false,
                seed: [0; SEED_BYTES],
                mem_bytes: limits.mem_mb.unwrap_or(0).saturating_mul(1024 * 1024),
                pids: limits.pids.unwrap_or(0).saturating_add(AGENT_PIDS),
                nofile_soft: plan.nofile.soft,
                nofile: plan.nofile.hard,
                disk_mb: plan.disk_mb,
                lowers: u32::try_from(lowers.len()).unwrap_or(0),
                trees,
                again: again_at_work(plan, asked),
            },
            lowers,
        }
    }

    /// Looks at everything that the disk shows. Blocking.
    pub fn disk(&self, images: &ImageCache) -> io::Result<Arc<Disk>> {
        let mut seen = 0;
        let first = || self.first();
        let first = match self.kept {
            true => images.get(self.roots()?, first)?,
            false => Arc::new(first()?),
        };
        let mut entries = Vec::new();
        for (number, given) in self.given.iter().enumerate() {
            let node = match &given.source {
                Some(source) => tree::look(&source.path(), given.user, &mut seen)?,
                None => tree::directory([]),
            };
            entries.push((number.to_string(), node));
        }
        let second = Arc::new(Image::of(tree::directory(entries))?);
        Ok(Arc::new(Disk::new(first, second)?))
    }

    /// The roots, and what they are now: one that was made anew under its old name is another.
    fn roots(&self) -> io::Result<Vec<RootStamp>> {
        let lowers = self.lowers.iter().map(HostSource::path);
        let one = |path: PathBuf| {
            let found = fs::metadata(&path)?;
            Ok(RootStamp { path, inode: found.ino(), ctime_s: found.ctime() })
        };
        lowers.chain(self.binds.iter().cloned()).map(one).collect()
    }

    fn first(&self) -> io::Result<Image> {
        let mut seen = 0;
        let mut entries: Vec<(String, Node)> = Vec::new();
        for (number, place) in self.lowers.iter().enumerate() {
            entries.push((number.to_string(), tree::look(&place.path(), None, &mut seen)?));
        }
        for (number, path) in self.binds.iter().enumerate() {
            entries.push((format!("bind-{number}"), tree::look(path, None, &mut seen)?));
        }
        Image::of(tree::directory(entries))
    }

    /// The same for a machine that begins with these files.
    pub fn filled(self, files: MachineFiles) -> Self {
        Self { files: Some(files), ..self }
    }

    /// The same for a machine that goes on with its memory.
    pub fn going_on(self) -> Self {
        Self { goes_on: true, ..self }
    }

    /// Whether it begins with files, or with its memory.
    pub fn is_filled(&self) -> bool {
        self.files.is_some() || self.goes_on
    }

    /// The fingerprint that a stored memory of it must have.
    pub fn mark(&self, plan: &Plan, machine: &Machine) -> MemoryFingerprint {
        MemoryFingerprint::of(machine, &plan.runtime, Shape::of(plan, machine), &self.setup)
    }

    /// Says to the init of a machine what it is from now on; one that was stored has greeted already.
    pub async fn hand_over(
        self,
        stream: &mut UnixStream,
        has_greeted: bool,
    ) -> Result<(), SetupError> {
        if self.goes_on {
            return setup::wake(stream).await;
        }
        if !has_greeted && setup::line(stream).await? != GREETING {
            return Err(SetupError::Said("the machine's init did not introduce itself".to_owned()));
        }
        setup::set_up(stream, self.setup, self.files.as_ref(), READY).await
    }
}

/// Has a machine that waits do once, for nobody, what it will do for its sandbox; it waits again then.
pub(crate) async fn rehearse(stream: &mut UnixStream) -> Result<(), SetupError> {
    let setup = Setup {
        is_rehearsal: true,
        is_filled: false,
        seed: [0; SEED_BYTES],
        mem_bytes: REHEARSAL_BYTES,
        pids: AGENT_PIDS + REHEARSAL_PIDS,
        nofile_soft: REHEARSAL_FILES,
        nofile: REHEARSAL_FILES,
        disk_mb: 1,
        lowers: 1,
        trees: Vec::new(),
        again: None,
    };
    setup::set_up(stream, setup, None, GREETING).await
}

/// A root by its path, its inode and the time of its last change, in seconds.
#[derive(Debug, PartialEq, Eq, Hash)]
struct RootStamp {
    path: PathBuf,
    inode: u64,
    ctime_s: i64,
}

/// A description of roots, and how old it is.
#[derive(Debug)]
struct CachedImage {
    age: Stopwatch,
    image: Arc<Image>,
}

/// Descriptions of roots that many sandboxes share.
#[derive(Debug, Default)]
pub(crate) struct ImageCache {
    kept: Mutex<HashMap<Vec<RootStamp>, CachedImage>>,
}

impl ImageCache {
    fn get(
        &self,
        roots: Vec<RootStamp>,
        make: impl FnOnce() -> io::Result<Image>,
    ) -> io::Result<Arc<Image>> {
        // Held while it is made: the second sandbox of a burst waits for what the first one makes.
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(CachedImage { age, image }) = kept.get(&roots)
            && age.elapsed_ms() < FRESH_MS
        {
            return Ok(Arc::clone(image));
        }
        let image = Arc::new(make()?);
        if kept.len() >= MAX_KEPT {
            kept.clear();
        }
        kept.insert(roots, CachedImage { age: Stopwatch::start(), image: Arc::clone(&image) });
        Ok(image)
    }
}

/// The project that a command works in, where that has its own path: `/work` leads there too.
fn again_at_work(plan: &Plan, asked: &[GuestMount]) -> Option<(String, String)> {
    let cwd = &plan.task.cwd;
    let is_given = |target: &str| asked.iter().any(|given| given.target == target);
    (is_given(cwd) && !is_given(DEFAULT_WORKDIR)).then(|| (cwd.clone(), DEFAULT_WORKDIR.to_owned()))
}
