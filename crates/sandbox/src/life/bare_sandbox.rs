//! A sandbox whose agent answers, before anything but its shape is a request's.

use std::sync::Arc;

use crate::agent::Agent;
use crate::egress::NoRouteAttempts;
use crate::host::task::Driver;
use crate::images;
use crate::life::handle::SandboxHandle;
use crate::life::sandbox::KillHandle;
use crate::machine::Storable;

/// A sandbox whose agent answers, before anything but its shape is a request's.
#[derive(Debug)]
pub(crate) struct BareSandbox {
    /// Keeps the image that it lies on.
    pub hold: Option<images::RootGuard>,
    pub life: SandboxHandle,
    pub agent: Agent,
    pub kill: KillHandle,
    /// Whether its kernel goes on with a memory that was kept.
    pub went_on: bool,
    /// What stores its machine with it, where it has one.
    pub storable: Option<Storable>,
    /// Where its kernel tells of attempts.
    pub heard: Option<(Arc<NoRouteAttempts>, Driver)>,
}
