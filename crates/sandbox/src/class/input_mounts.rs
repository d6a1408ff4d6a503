//! What a sandbox is given of this host, as its class shows it.
//!
//! `life` decides what is given, in order; a class names the medium (`InputMounts`): an OCI runtime is told to bind
//! places of ours, a machine has a disk, a provider gets bytes.

use std::path::{Path, PathBuf};

use cofferdam_guest::wire::User;
use serde_json::Value;

use crate::agent::changes::UpperLocation;
use crate::host::hostpath::{HostHandle, HostSource};
use crate::machine::{GuestMount, changes_at};
use crate::oci;
use crate::spec::input::InputPieces;
use crate::spec::plan::Plan;

/// A file that the agent is to write.
pub(crate) struct Upload<'a> {
    pub path: &'a str,
    pub content: UploadContent<'a>,
    pub mode: u32,
}

/// Where its bytes are.
pub(crate) enum UploadContent<'a> {
    Bytes(&'a [u8]),
    Ours(PathBuf),
    Given(HostHandle),
    Stream(&'a InputPieces),
}

/// What is mounted at a place of ours before the runtime starts.
#[derive(Debug, Clone)]
pub(crate) struct Share {
    pub opened: HostHandle,
    pub at: PathBuf,
    pub readonly: bool,
}

/// A host directory that is shown through an overlay.
#[derive(Debug, Clone)]
pub(crate) struct Overlay {
    pub at: PathBuf,
    pub lower: PathBuf,
    /// Upper and working directory; `None`: nothing can be changed.
    pub changes: Option<(PathBuf, PathBuf)>,
    /// Whether directories of the host can be renamed in it. Its upper directory then holds only a part of them, so it is
    /// no layer of anything.
    pub moves: bool,
    /// What was named, for messages.
    pub of: String,
    /// Whom the owner of what a tenant named is inside; `None`: every owner is shown as it is.
    pub user: Option<User>,
}

/// Why a class gives no such path of the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MountRefusal {
    /// The sandbox is on another host.
    Elsewhere,
    /// It cannot be written through.
    Full,
}

/// How paths of the host get into the sandboxes of a class.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Medium {
    /// A runtime of this host binds places of ours.
    #[default]
    Runtime,
    /// A machine reads them from its disk, and mounts for itself.
    Machine,
    /// The agent writes bytes: the class gives no path ([`MountRefusal::Elsewhere`]).
    Bytes,
}

/// Inputs, resolved against this host.
#[derive(Default)]
pub(crate) struct ResolvedInputs<'a> {
    medium: Medium,
    /// OCI mounts, in order.
    pub mounts: Vec<Value>,
    /// The same for a machine, which mounts for itself.
    pub given: Vec<GuestMount>,
    /// What is mounted at places of ours, for those mounts to bind.
    pub shares: Vec<Share>,
    /// Directories to make in the layer before those mounts.
    pub dirs: Vec<PathBuf>,
    /// Overlays to mount in those directories, where the runtime cannot.
    pub overlays: Vec<Overlay>,
    /// Directories that are seen copy-on-write: where, and the place of their changes.
    pub trees: Vec<(String, UpperLocation)>,
    /// Where a machine shows what its build leaves in the cached directories, in their order; empty
    /// where that lies on the host.
    pub fresh: Vec<String>,
    /// Files to write once the agent answers.
    pub uploads: Vec<Upload<'a>>,
}

impl<'a> ResolvedInputs<'a> {
    /// Nothing yet, for a class of this medium.
    pub(crate) fn by(medium: Medium) -> Self {
        Self { medium, ..Self::default() }
    }

    /// Whether nothing of it is mounted: what remains is written once the agent answers.
    pub(crate) fn is_bare(&self) -> bool {
        let hosts = [self.shares.len(), self.overlays.len(), self.dirs.len(), self.given.len()];
        self.mounts.is_empty() && hosts.iter().all(|count| *count == 0)
    }

    /// Shows a path of the host read-only.
    pub(crate) fn show(&mut self, plan: &Plan, source: HostSource, target: &str) {
        match self.medium {
            Medium::Machine => self.given.push(GuestMount::of(plan, source, target, None)),
            Medium::Runtime | Medium::Bytes => {
                self.bound(plan, source, target, plan.class.is_on_host_kernel());
            }
        }
    }

    /// Shows a file of ours.
    pub(crate) fn show_ours(&mut self, plan: &Plan, file: &Path, target: &'a str) {
        if self.medium == Medium::Bytes {
            let content = UploadContent::Ours(file.to_owned());
            self.uploads.push(Upload { path: target, content, mode: 0o444 });
        } else {
            self.show(plan, HostSource::Ours(file.to_owned()), target);
        }
    }

    /// Shows a directory of the host copy-on-write, with its changes in a place of the layer.
    pub(crate) fn show_on_write(
        &mut self,
        plan: &Plan,
        lower: HostSource,
        target: &str,
        place: &Path,
    ) {
        match self.medium {
            Medium::Machine => {
                let shown = changes_at(self.given.len());
                self.given.push(GuestMount::of(plan, lower, target, Some(shown)));
            }
            Medium::Runtime | Medium::Bytes => self.overlaid(plan, target, lower, place),
        }
    }

    /// The same of a directory whose changes a person may look at afterwards.
    pub(crate) fn show_tree(&mut self, plan: &Plan, lower: HostSource, target: &str) {
        let place = plan.traces.layer.join(format!("tree-{}", self.dirs.len()));
        let changed = match self.medium {
            Medium::Machine => UpperLocation::Inside(changes_at(self.given.len())),
            Medium::Runtime | Medium::Bytes => {
                UpperLocation::Host { upper: place.join("upper"), merged: place.join("merged") }
            }
        };
        self.trees.push((target.to_owned(), changed));
        self.show_on_write(plan, lower, target, &place);
        // A machine has none.
        if let Some(overlay) = self.overlays.last_mut() {
            overlay.moves = true;
        }
    }

    /// Shows an empty directory of the sandbox's own, which lies at a place of the layer and is kept for others.
    pub(crate) fn show_own(&mut self, target: &str, place: &Path) {
        match self.medium {
            Medium::Machine => {
                let shown = changes_at(self.given.len());
                self.given.push(GuestMount::own(target, shown.clone()));
                self.fresh.push(shown);
            }
            Medium::Runtime | Medium::Bytes => {
                self.mounts.push(oci::bind_writable(place, target));
                self.dirs.push(place.to_owned());
            }
        }
    }

    /// Binds a path of the host read-only; `through` an overlay where a socket in it would have its listener.
    fn bound(&mut self, plan: &Plan, source: HostSource, target: &str, through: bool) {
        let (of, is_dir) =
            (source.name(), matches!(&source, HostSource::Given(given) if given.is_dir()));
        let user = plan.user_of(&source);
        let mut at = self.placed(plan, source, true);
        if is_dir && through {
            let lower = std::mem::replace(&mut at, plan.traces.seen(self.overlays.len()));
            self.overlays.push(Overlay {
                at: at.clone(),
                lower,
                changes: None,
                moves: false,
                of,
                user,
            });
        }
        self.mounts.push(oci::bind(&at, target));
    }

    /// Binds a path of the host that is written through.
    pub(crate) fn bound_through(&mut self, plan: &Plan, source: HostSource, target: &str) {
        let at = self.placed(plan, source, false);
        self.mounts.push(oci::bind_writable(&at, target));
    }

    /// Binds a directory of the host copy-on-write, with its changes in `place`.
    fn overlaid(&mut self, plan: &Plan, target: &str, lower: HostSource, place: &Path) {
        let (upper, work) = (place.join("upper"), place.join("work"));
        let (of, user) = (lower.name(), plan.user_of(&lower));
        let lower = self.placed(plan, lower, true);
        let at = place.join("merged");
        self.mounts.push(oci::bind_writable(&at, target));
        self.dirs.push(at.clone());
        let changes = Some((upper.clone(), work.clone()));
        self.overlays.push(Overlay { at, lower, changes, moves: false, of, user });
        self.dirs.extend([upper, work]);
    }

    /// A path that a runtime may be told: what a tenant named gets a place of ours first.
    fn placed(&mut self, plan: &Plan, source: HostSource, readonly: bool) -> PathBuf {
        match source {
            HostSource::Ours(path) => path,
            HostSource::Given(opened) => {
                let at = plan.traces.given(self.shares.len());
                self.shares.push(Share { opened, at: at.clone(), readonly });
                at
            }
        }
    }
}
