//! The files of a sandbox that runs, kept as a stream, and put into the layer of another before it begins.
//!
//! ```text
//! Sandbox --snapshotter--> LayerSnapshotter --snapshot--> freeze -> stream -> FrozenSandbox --dropped--> it goes on
//!                              |                                               ^   \--end--> its processes are killed where they stand
//!                              \--freeze_for_pause--> freeze -> DetachedLayer -/
//! ```
//! Where the layer lies in a machine, `inside_layer` has its agent stop it and hand the stream out.
//!
//! ```text
//! stream or DetachedLayer -> InitialFiles --provision_filled--> a sandbox with these files
//! ```
//! With its memory, where its class can: the agent sleeps, the kernel writes itself and ends, then the files follow, which
//! nobody changes any more. `memory` has that part of a stream. The files of a machine come first, and then its memory with them in it:
//! `machine_memory`.
//!
//! While the stream is written every process stands still, so it has the files of one moment: what was written, in the
//! order in which it was written. What a program still has in its own memory is not in it.
//!
//! One file: what stands still and what is written of it are one promise.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use cofferdam_ambient::clock;
use cofferdam_contracts::sandbox::{DEFAULT_DISK_MB, DEFAULT_MEM_MB};
use cofferdam_guest::pieces::PieceWriter;

use crate::agent::layer_stream::FrozenTask;
use crate::agent::{Agent, AgentError};
use crate::class;
use crate::host::detached_layer::DetachedLayer;
use crate::host::freeze::FreezeGuard;
use crate::host::idrange::{self, IdRange};
use crate::host::tenant_root::TenantRoot;
use crate::host::traces::Traces;
use crate::host::{process, upper};
use crate::life::inside_layer::{self, MachineSize};
use crate::life::machine_memory;
use crate::life::memory::{MAX_PIECE, StoredMemory};
use crate::life::sandbox::{KillHandle, Sandbox};
use crate::machine::Storable;
use crate::spec::class::Class;
use crate::spec::facts::HostFacts;

/// The processes of a kernel that has ended go within milliseconds; ten seconds, two milliseconds apart.
const END_TRIES: usize = 5_000;
const MIB: u64 = 1024 * 1024;

/// Why the files of a sandbox could not be kept. It goes on.
#[derive(Debug, thiserror::Error)]
pub enum LayerSnapshotError {
    /// The kernel did not stop its processes.
    #[error("the sandbox could not be stopped for a moment: {0}")]
    Freeze(#[source] io::Error),
    /// A file could not be read, or the stream not written.
    #[error("the sandbox's files could not be kept: {0}")]
    Files(#[source] io::Error),
    /// No sandbox would begin with them.
    #[error(
        "the sandbox's files cannot be kept: its /{0} is not a directory, and no sandbox begins with such files; make it a \
         directory again"
    )]
    Displaced(&'static str),
}

/// Why nothing keeps the files of a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "the files of a sandbox of the class `{0}` cannot be kept: the classes with pause, snapshot and fork are {keeping}",
    keeping = keeping()
)]
pub struct NoSnapshotReason(&'static str);

/// Keeps the files of one sandbox, from anywhere.
#[derive(Debug, Clone)]
pub struct LayerSnapshotter {
    facts: Arc<HostFacts>,
    traces: Traces,
    first: u32,
    ids: Option<IdRange>,
    kill: KillHandle,
    class: Class,
    agent: Agent,
    /// Bytes that its memory and its layer may have.
    mem_bytes: u64,
    disk_bytes: u64,
    /// What stores its machine.
    storable: Option<Storable>,
}

/// A sandbox whose agent sleeps, or will once its files are written. Once it sleeps it does not go on.
#[derive(Debug)]
#[must_use]
pub struct SleepHandle(LayerSnapshotter);

impl Sandbox {
    /// What keeps its files.
    ///
    /// # Errors
    /// Its class cannot.
    pub fn snapshotter(&self) -> Result<LayerSnapshotter, NoSnapshotReason> {
        let class = kept_by(self.subject.class)?;
        let limits = self.effective.limits;
        let mem_mb = limits.mem_mb.unwrap_or(DEFAULT_MEM_MB);
        let disk_mb = limits.disk_mb.unwrap_or(DEFAULT_DISK_MB);
        Ok(LayerSnapshotter {
            class,
            agent: self.agent.clone(),
            mem_bytes: mem_mb.saturating_mul(MIB),
            disk_bytes: disk_mb.saturating_mul(MIB),
            facts: Arc::clone(&self.facts),
            traces: self.subject.traces.clone(),
            first: self.first_id(),
            ids: self.subject.ids.clone(),
            kill: self.kill_handle(),
            storable: self.storable.clone(),
        })
    }
}

/// The classes whose sandboxes' files can be kept.
fn keeping() -> String {
    let names = Class::ALL.iter().filter(|class| class::of(**class).snapshots.keeps_files());
    names.map(|class| format!("`{}`", class.as_str())).collect::<Vec<_>>().join(", ")
}

/// Whether the files of a class's sandboxes can be kept. Pure.
fn kept_by(class: Option<Class>) -> Result<Class, NoSnapshotReason> {
    match class {
        Some(class) if class::of(class).snapshots.keeps_files() => Ok(class),
        class => Err(NoSnapshotReason(class.map_or("unknown", Class::as_str))),
    }
}

impl LayerSnapshotter {
    /// Stops the sandbox, writes all its files and gives it as it stands. Blocking; once `goes_on` says no, it is an error.
    /// The sandbox must not be wiped meanwhile.
    ///
    /// # Errors
    /// It could not be stopped, or a file not be read or written; then it goes on.
    pub fn snapshot(
        &self,
        out: &mut dyn Write,
        goes_on: &dyn Fn() -> bool,
    ) -> Result<FrozenSandbox, LayerSnapshotError> {
        if class::of(self.class).snapshots.has_layer_inside() {
            let standing = inside_layer::snapshot(&self.agent, self.size(), out, goes_on)?;
            return Ok(FrozenSandbox {
                standing: Some(standing),
                frozen: None,
                snapshotter: self.clone(),
            });
        }
        let frozen = self.freeze()?;
        let written = upper::pack(&self.traces.layer.join("upper"), self.first, out, goes_on);
        written.map_err(LayerSnapshotError::Files)?;
        Ok(FrozenSandbox { frozen: Some(frozen), standing: None, snapshotter: self.clone() })
    }

    /// Stops the sandbox and gives a descriptor of its layer, for another process that reads its files with [`write_files`], and
    /// their first owner. `None`: its layer is not this host's, and is written by [`Self::snapshot`]. Blocking. The sandbox must not be
    /// wiped before that process has ended.
    ///
    /// # Errors
    /// It could not be stopped, or its layer not be held; then it goes on.
    ///
    /// [`write_files`]: crate::write_files
    pub fn freeze_to_copy(
        &self,
    ) -> Result<Option<(FrozenSandbox, OwnedFd, u32)>, LayerSnapshotError> {
        if !self.can_detach_layer() {
            return Ok(None);
        }
        let frozen = self.freeze()?;
        let tree = idrange::copy(&self.traces.layer).map_err(LayerSnapshotError::Files)?;
        let still =
            FrozenSandbox { frozen: Some(frozen), standing: None, snapshotter: self.clone() };
        Ok(Some((still, tree, self.first)))
    }

    /// Stops it, unless no sandbox could begin with its files.
    fn freeze(&self) -> Result<FreezeGuard, LayerSnapshotError> {
        let frozen = self.facts.cgroups.freeze(&self.traces).map_err(LayerSnapshotError::Freeze)?;
        self.in_place().map(|()| frozen)
    }

    /// Refuses where a directory that every sandbox has is something else: a link, or a file. A machine resolves its own files.
    ///
    /// # Errors
    /// There is one, or the root cannot be looked into.
    pub fn in_place(&self) -> Result<(), LayerSnapshotError> {
        if !self.can_detach_layer() {
            return Ok(());
        }
        // Its root is its own to see; what is not in here is a directory of its image.
        let tree = TenantRoot::open(&self.traces.layer.join("upper"), self.first);
        match tree.and_then(|tree| tree.displaced()).map_err(LayerSnapshotError::Files)? {
            Some(name) => Err(LayerSnapshotError::Displaced(name)),
            None => Ok(()),
        }
    }

    /// Whether its memory can be kept with its files.
    #[must_use]
    pub fn can_snapshot_memory(&self) -> bool {
        self.storable.is_some()
            || self.facts.memory_support(self.class).is_some_and(|memory| memory.is_kept)
    }

    /// Whether its memory is behind its files in a stream, as that of a machine is.
    #[must_use]
    pub fn is_memory_last(&self) -> bool {
        self.storable.is_some()
    }

    /// Whether the disk of this directory takes all that the sandbox may have. Once its processes have ended it is too late to
    /// find that it does not.
    #[must_use]
    pub fn fits(&self, dir: &Path) -> bool {
        StoredMemory::fits(dir, self.most())
    }

    /// Bytes that its memory and files take at most.
    #[must_use]
    pub fn most(&self) -> u64 {
        let memory = match self.storable {
            Some(_) => machine_memory::most(self.mem_bytes),
            None => self.mem_bytes,
        };
        memory.saturating_add(self.disk_bytes)
    }

    /// Has its agent sleep, so that its memory can be kept.
    ///
    /// # Errors
    /// What of it cannot be kept, in words; then it goes on. Any other means that it does not answer any more.
    pub async fn sleep(&self) -> Result<SleepHandle, SleepError> {
        if self.storable.is_some() {
            return Ok(SleepHandle(self.clone()));
        }
        match self.agent.sleep().await {
            Ok(()) => Ok(SleepHandle(self.clone())),
            Err(AgentError::Refused { error, .. }) => Err(SleepError::Refused(error)),
            Err(error @ AgentError::Old { .. }) => Err(SleepError::Refused(error.to_string())),
            Err(error) => Err(SleepError::Lost(error)),
        }
    }
}

/// Why a sandbox's memory is not kept.
#[derive(Debug, thiserror::Error)]
pub enum SleepError {
    /// It cannot be, and the sandbox goes on.
    #[error("{0}")]
    Refused(String),
    /// Its agent is gone.
    #[error("the sandbox's agent does not sleep")]
    Lost(#[source] AgentError),
}

impl SleepHandle {
    /// Whether it cannot go on any more.
    #[must_use]
    pub fn is_asleep(&self) -> bool {
        self.0.storable.is_none()
    }

    /// Writes its memory and its files, and gives the sandbox, whose processes have ended. Where its kernel could not
    /// write the memory, its files alone are in the stream, and the reason is given. Blocking; once `goes_on` says no, it
    /// is an error. `falls_asleep` is told before it cannot go on.
    ///
    /// # Errors
    /// The stream could not be written, or a file not be read. One that had not fallen asleep goes on.
    pub fn snapshot(
        self,
        out: &mut dyn Write,
        goes_on: &dyn Fn() -> bool,
        falls_asleep: &dyn Fn(),
    ) -> Result<(FrozenSandbox, Option<io::Error>), LayerSnapshotError> {
        let Self(snapshotter) = self;
        if let Some(storable) = &snapshotter.storable {
            let (agent, size) = (&snapshotter.agent, snapshotter.size());
            let kept = machine_memory::store(storable, agent, size, out, goes_on, falls_asleep);
            let (standing, fault) = kept?;
            if standing.is_none() {
                snapshotter.end();
                snapshotter.ended().map_err(LayerSnapshotError::Freeze)?;
            }
            return Ok((
                FrozenSandbox { frozen: None, standing, snapshotter: snapshotter.clone() },
                fault,
            ));
        }
        let mut pieces = PieceWriter::to(&mut *out, MAX_PIECE);
        let most = StoredMemory::most(snapshotter.mem_bytes);
        let members = snapshotter.facts.cgroups.members(&snapshotter.traces);
        let snapshots = class::of(snapshotter.class).snapshots;
        let stored = snapshots.store_memory(&snapshotter.traces, &members, &mut pieces, most);
        let fault = pieces.finish(stored.is_ok()).map_err(LayerSnapshotError::Files);
        // What did not write itself is not to go on either.
        if stored.is_err() || fault.is_err() {
            snapshotter.end();
        }
        fault?;
        snapshotter.ended().map_err(LayerSnapshotError::Freeze)?;
        let written =
            upper::pack(&snapshotter.traces.layer.join("upper"), snapshotter.first, out, goes_on);
        written.map_err(LayerSnapshotError::Files)?;
        Ok((FrozenSandbox { frozen: None, standing: None, snapshotter }, stored.err()))
    }
}

impl LayerSnapshotter {
    fn size(&self) -> MachineSize {
        MachineSize { mem_bytes: self.mem_bytes, disk_bytes: self.disk_bytes }
    }

    fn end(&self) {
        self.kill.kill();
        for pid in self.facts.cgroups.members(&self.traces) {
            process::kill_member(pid, &self.traces.cgroup);
        }
    }

    /// Waits until no process of it is left.
    fn ended(&self) -> io::Result<()> {
        for _ in 0..END_TRIES {
            if self.facts.cgroups.members(&self.traces).is_empty() {
                return Ok(());
            }
            clock::sleep_blocking(Duration::from_millis(2));
        }
        Err(io::Error::other("its processes did not end in time"))
    }
}

impl LayerSnapshotter {
    /// Whether its layer may outlive it as it is: it is this host's. Pure.
    #[must_use]
    pub fn can_detach_layer(&self) -> bool {
        !class::of(self.class).snapshots.has_layer_inside()
    }

    /// Stops the sandbox and holds its layer, which then outlives it: nothing is copied. Blocking. `None`: the layer does not
    /// lie in memory of this host, and its files have to be written. The sandbox must not be wiped meanwhile.
    ///
    /// # Errors
    /// It could not be stopped, or its layer not be held; then it goes on.
    pub fn freeze_for_pause(
        &self,
    ) -> Result<Option<(FrozenSandbox, DetachedLayer)>, LayerSnapshotError> {
        if !self.can_detach_layer() {
            return Ok(None);
        }
        let Traces { layer, dir, .. } = &self.traces;
        let frozen = self.freeze()?;
        let plain =
            DetachedLayer::of(layer, dir, self.ids.clone()).map_err(LayerSnapshotError::Files)?;
        Ok(plain.map(|plain| {
            let still =
                FrozenSandbox { frozen: Some(frozen), standing: None, snapshotter: self.clone() };
            (still, plain)
        }))
    }
}

/// A sandbox that stands still. It goes on when this is dropped.
#[derive(Debug)]
#[must_use]
pub struct FrozenSandbox {
    /// `None`: nothing of it runs any more.
    frozen: Option<FreezeGuard>,
    /// Of a machine, whose kernel holds its task.
    standing: Option<FrozenTask>,
    snapshotter: LayerSnapshotter,
}

impl FrozenSandbox {
    /// Kills every process where it stands: none of them runs another instruction of its program.
    pub fn end(self) {
        let Self { frozen, standing, snapshotter } = self;
        snapshotter.end();
        drop((frozen, standing));
    }
}

/// What a sandbox begins with.
pub enum InitialFiles {
    /// A stream of files for its layer, its memory before them.
    Stream(SnapshotStream),
    /// The layer itself.
    Layer(Arc<DetachedLayer>),
}

/// What [`LayerSnapshotter::snapshot`] or [`SleepHandle::snapshot`] wrote.
pub struct SnapshotStream {
    stream: Box<dyn Read + Send + Sync>,
    form: StreamForm,
    wants_memory: bool,
}

/// What is in a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StreamForm {
    Files,
    /// A memory, and then files.
    MemoryFirst,
    /// What a machine's memory goes on with, the files, and that memory.
    MemoryLast,
}

impl std::fmt::Debug for InitialFiles {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("InitialFiles")
    }
}

impl InitialFiles {
    /// What [`LayerSnapshotter::snapshot`] wrote.
    pub fn new(stream: impl Read + Send + Sync + 'static) -> Self {
        Self::of(stream, StreamForm::Files)
    }

    /// What [`SleepHandle::snapshot`] wrote: the sandbox goes on where it was.
    pub fn with_memory(stream: impl Read + Send + Sync + 'static) -> Self {
        Self::of(stream, StreamForm::MemoryFirst)
    }

    /// The same of a sandbox with its memory last.
    pub fn with_memory_last(stream: impl Read + Send + Sync + 'static) -> Self {
        Self::of(stream, StreamForm::MemoryLast)
    }

    fn of(stream: impl Read + Send + Sync + 'static, form: StreamForm) -> Self {
        let wants_memory = form != StreamForm::Files;
        Self::Stream(SnapshotStream { stream: Box::new(stream), form, wants_memory })
    }

    /// The same for a sandbox that begins with the files alone.
    #[must_use]
    pub fn files_alone(self) -> Self {
        match self {
            Self::Stream(stream) => Self::Stream(SnapshotStream { wants_memory: false, ..stream }),
            Self::Layer(layer) => Self::Layer(layer),
        }
    }

    /// Whether processes go on with it.
    #[must_use]
    pub fn wakes(&self) -> bool {
        matches!(self, Self::Stream(SnapshotStream { wants_memory: true, .. }))
    }

    pub(crate) fn is_layer(&self) -> bool {
        self.layer().is_some()
    }

    pub(crate) fn layer(&self) -> Option<&Arc<DetachedLayer>> {
        match self {
            Self::Layer(layer) => Some(layer),
            Self::Stream(_) => None,
        }
    }

    /// The memory that it begins with, for a sandbox whose directory this is. Before the files; blocking.
    pub(crate) fn memory(&mut self, dir: &Path) -> io::Result<Option<StoredMemory>> {
        match self {
            Self::Stream(SnapshotStream {
                stream,
                form: form @ StreamForm::MemoryFirst,
                wants_memory,
            }) => {
                *form = StreamForm::Files;
                StoredMemory::read(stream.as_mut(), wants_memory.then_some(dir))
            }
            Self::Stream(_) | Self::Layer(_) => Ok(None),
        }
    }

    /// The memory that a machine with this mark goes on with. In place of the files, which are in it; blocking.
    pub(crate) fn machine(&mut self, mark: impl FnOnce() -> String) -> io::Result<Option<File>> {
        match self {
            Self::Stream(SnapshotStream {
                stream,
                form: StreamForm::MemoryLast,
                wants_memory: true,
            }) => machine_memory::read(stream.as_mut(), &mark()).map(Some),
            Self::Stream(_) | Self::Layer(_) => Ok(None),
        }
    }
}

impl SnapshotStream {
    /// The files in it; a memory before them was read. Blocking.
    pub(crate) fn into_files(self) -> io::Result<Box<dyn Read + Send>> {
        match self.form {
            StreamForm::Files | StreamForm::MemoryFirst => Ok(self.stream),
            StreamForm::MemoryLast => machine_memory::files(self.stream),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_every_class_of_this_host_are_kept_and_every_other_class_is_refused_by_its_name() {
        for class in Class::ALL {
            match kept_by(Some(class)) {
                Ok(_) => assert!(Class::LOCAL.contains(&class)),
                Err(why) => {
                    let named = format!("class `{}` cannot", class.as_str());
                    assert!(why.to_string().contains(&named), "{why}");
                    assert!(
                        why.to_string().ends_with("are `container`, `gvisor`, `microvm`, `docker`"),
                        "{why}"
                    );
                }
            }
        }
    }
}
