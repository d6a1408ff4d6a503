//! What the host fetches from: a mirror's sites, and which of them a name inside stands for.

use std::sync::Arc;

use rustls::ClientConfig;
use tokio::sync::Semaphore;

use super::site::MirrorBase;
use crate::egress::policy::{MirrorName, Rule};

/// All sites of one mirror.
pub(crate) struct Forward {
    pub(super) mirror: MirrorName,
    pub(super) bases: Vec<MirrorBase>,
    /// How the host dials them.
    pub(super) rule: Rule,
    pub(super) tls: Arc<ClientConfig>,
    pub(super) pages: Semaphore,
}

impl std::fmt::Debug for Forward {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(&self.bases).finish()
    }
}

/// Which site of which mirror a name inside stands for.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    pub forward: Arc<Forward>,
    pub index: usize,
}

impl Target {
    pub(super) fn base(&self) -> Option<&MirrorBase> {
        self.forward.bases.get(self.index)
    }
}

impl PartialEq for Target {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.forward, &other.forward) && self.index == other.index
    }
}

impl Eq for Target {}
