//! Ids of the host that belong to one sandbox: its root is nobody outside.
//!
//! ```text
//! regions (COFFERDAM_ID_RANGE, /etc/subuid, or the default) --> ranges of 65,536 ids
//! sandbox begins: claim one in the ledger -> its user namespace -> mounts shifted by it
//! sandbox is wiped and verified: the claim goes;  wipe failed: the claim stays, and says so, until nothing of it is seen
//! ```
//! **Two sandboxes that live never have an id in common**, whatever their workers and state directories: the ledger is one
//! directory of the host, and a claim is the making of a name in it.

mod exchange;
mod ledger;
mod region;
mod shift;
mod space;

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use cofferdam_ambient::random;
use cofferdam_guest::wire::User;

use crate::host::devices;
use crate::host::runtime::Runtime;

pub(crate) use exchange::exchanged;
pub(crate) use ledger::{RangeRetention, give_back, hand_over, is_of, keep};
pub(crate) use region::COUNT;
pub use region::Region;
pub(crate) use shift::{attach, copy, shifted, with_devices};

/// Namespaces that are kept for the next sandbox: each costs 1 KiB of the kernel's memory and an open file, and as many
/// as a worker has sandboxes at a time profit.
const MAX_KEPT: usize = 64;

/// The ids of one sandbox, the first of which is its root.
#[derive(Debug, Clone)]
pub(crate) struct IdRange {
    pub first: u32,
    pub space: Arc<OwnedFd>,
}

/// The ranges of this host.
#[derive(Debug, Clone)]
pub struct IdRanges {
    regions: Vec<Region>,
    holder: PathBuf,
    /// Whether a sandbox's namespace is its own root's: else the kernel counts what is used up in there for the host's root,
    /// too, and refuses that root.
    owned: bool,
    /// Why sandboxes have the host's device nodes instead of their own, where they do.
    foreign_nodes: Option<String>,
    kept: Arc<Mutex<Vec<IdRange>>>,
}

impl PartialEq for IdRanges {
    fn eq(&self, other: &Self) -> bool {
        self.regions == other.regions
    }
}

impl IdRanges {
    /// Looks for a region and tries one range of it: a namespace, and a shifted mount below an overlay. `guest` is the layer
    /// with the agent, `binds` what is shown of the host, `live` where sandboxes lie. Why there is none, otherwise.
    pub(crate) fn detect(
        guest: &Path,
        binds: &[PathBuf],
        live: &Path,
        runtime: &Runtime,
    ) -> Result<Self, String> {
        let regions = region::find()?;
        space::reachable(live)?;
        let holder = guest.join(crate::host::guest::AGENT_PATH.trim_start_matches('/'));
        // runc sets the limits of a process that it does not own then.
        let owned = runtime.name == "crun" || space::sets_limits();
        let foreign_nodes = devices::try_one().err().map(|error| error.to_string());
        let ranges = Self { regions, holder, owned, foreign_nodes, kept: Arc::default() };
        ledger::prepare().map_err(|error| format!("the ledger of id ranges: {error}"))?;
        let first = ranges.regions.first().map_or(0, Region::first);
        let space = space::make(&ranges.holder, first, ranges.owner(first));
        let space = space.map_err(|error| format!("a user namespace cannot be made: {error}"))?;
        for shown in binds.iter().map(PathBuf::as_path).chain([guest]) {
            shift::try_one(shown, live, &space).map_err(|error| {
                format!("{} cannot be shown with other ids (Linux 5.19): {error}", shown.display())
            })?;
        }
        Ok(ranges)
    }

    /// As it is said to people.
    #[must_use]
    pub fn said(&self) -> String {
        let said = |region: &Region| format!("{} from {}", region.ranges(), region.first());
        self.regions.iter().map(said).collect::<Vec<_>>().join(", ")
    }

    /// Whether what is used up in a sandbox is counted for its own root alone.
    #[must_use]
    pub fn is_owned(&self) -> bool {
        self.owned
    }

    /// Why a sandbox with ids of its own has the host's device nodes, where this worker can make none.
    #[must_use]
    pub fn foreign_nodes(&self) -> Option<&str> {
        self.foreign_nodes.as_deref()
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.regions.iter().map(Region::ranges).sum()
    }

    fn owner(&self, first: u32) -> u32 {
        if self.owned { first } else { 0 }
    }

    /// Takes a range for the sandbox in `dir`.
    pub(crate) fn take(&self, dir: &Path) -> io::Result<IdRange> {
        let mut kept = std::mem::take(&mut *self.kept());
        let found = kept.iter().position(|taken| ledger::claim(taken.first, dir).unwrap_or(false));
        let found = found.map(|at| kept.swap_remove(at));
        self.kept().append(&mut kept);
        if let Some(taken) = found {
            return Ok(taken);
        }
        let first = match self.claim(dir)? {
            Some(first) => first,
            None => {
                ledger::reclaim();
                let none = || io::Error::other("every id range of this host is taken");
                self.claim(dir)?.ok_or_else(none)?
            }
        };
        match space::make(&self.holder, first, self.owner(first)) {
            Ok(space) => Ok(IdRange { first, space: Arc::new(space) }),
            Err(error) => {
                give_back(dir, None);
                Err(error)
            }
        }
    }

    /// Gives the user ids of failed wipes back of which nothing is left. Blocking.
    pub fn reclaim_failed() {
        if ledger::has_failed() {
            ledger::reclaim();
        }
    }

    /// A namespace in which one owner of the host is this user of the sandbox whose ids begin at `first`.
    pub(crate) fn owned(&self, owner: User, first: u32, user: User) -> io::Result<OwnedFd> {
        let map = |id: u32, inside: u32| format!("{id} {} 1\n", first.saturating_add(inside));
        space::made(&self.holder, &map(owner.uid, user.uid), &map(owner.gid, user.gid), 0)
    }

    /// A namespace in which one owner of the host is this user of the sandbox, and the reverse.
    pub(crate) fn exchanged(
        &self,
        taken: &IdRange,
        owner: User,
        user: User,
    ) -> io::Result<OwnedFd> {
        exchanged(&self.holder, Some(taken), owner, user)
    }

    /// Keeps the namespace of a range that was given back.
    pub(crate) fn recycle(&self, taken: IdRange) {
        let mut kept = self.kept();
        if kept.len() < MAX_KEPT {
            kept.push(taken);
        }
    }

    /// The first range that nobody has, from a place that other workers hardly begin at.
    fn claim(&self, dir: &Path) -> io::Result<Option<u32>> {
        let all = self.count();
        let start = u32::from_str_radix(&random::secret_hex(4), 16).unwrap_or(0);
        for step in 0..all {
            let Some(first) = region::nth(&self.regions, (start.wrapping_add(step)) % all) else {
                continue;
            };
            if ledger::claim(first, dir)? {
                return Ok(Some(first));
            }
        }
        Ok(None)
    }

    fn kept(&self) -> std::sync::MutexGuard<'_, Vec<IdRange>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
