//! Names of sandboxes that are about to be made.

use std::io;
use std::path::Path;
use std::sync::Arc;

use cofferdam_ambient::random;
use cofferdam_contracts::id::{IdError, SandboxId};

use super::container_pool::{Claim, ContainerPool, EarlyMarks, Name};

/// The names that a host gives to the sandboxes that come next.
#[derive(Debug, Clone, Copy)]
pub struct SandboxNames<'a> {
    live: &'a Path,
    waits: &'a Arc<ContainerPool>,
    ahead: &'a EarlyMarks,
}

/// A name that is marked for a sandbox that is not on record.
#[derive(Debug)]
pub struct NameReservation {
    id: SandboxId,
    all: EarlyMarks,
}

impl<'a> SandboxNames<'a> {
    pub(super) fn new(
        live: &'a Path,
        waits: &'a Arc<ContainerPool>,
        ahead: &'a EarlyMarks,
    ) -> Self {
        Self { live, waits, ahead }
    }

    /// The name of the next sandbox: that of a container that waits, where one does. Whoever makes no sandbox under it
    /// drops it.
    pub fn next(self) -> Result<Name, IdError> {
        ContainerPool::name(self.waits)
    }

    /// Whether a container waits for the next sandbox.
    #[must_use]
    pub fn has_one_ready(self) -> bool {
        self.waits.is_one_ready()
    }

    /// A new name, under which no container waits.
    ///
    /// # Errors
    /// The host's directory of sandboxes takes no file.
    pub fn reserve(self) -> io::Result<NameReservation> {
        let id = SandboxId::parse(&format!("sb{}", random::secret_hex(10)));
        let id = id.map_err(io::Error::other)?;
        let (claim, all) = (Claim::take(self.live, &id)?, self.ahead.clone());
        all.add(&id, claim);
        Ok(NameReservation { id, all })
    }

    /// Whether one under this name was made early here, and is not taken or wiped yet.
    #[must_use]
    pub fn is_early(self, id: &SandboxId) -> bool {
        self.ahead.has(id)
    }

    /// Whether one under this name was made early here for nothing, and its wipe is not verified.
    #[must_use]
    pub fn has_failed_early(self, id: &SandboxId) -> bool {
        self.ahead.has_failed(id)
    }

    /// Takes away the marks of those that are not on record yet: the next reconciler finds them. Call it when this worker is at its
    /// end and does not wait for them.
    pub fn abandon_early(self) {
        self.ahead.end_all();
    }
}

impl Drop for NameReservation {
    fn drop(&mut self) {
        self.all.end(&self.id);
    }
}

impl NameReservation {
    /// The reserved name, under which the sandbox is made.
    #[must_use]
    pub fn id(&self) -> &SandboxId {
        &self.id
    }

    /// The wipe of what was made under it is not verified.
    pub(super) fn fail(&self) {
        self.all.fail(&self.id);
    }
}
