//! Whether pauses keep the memory of a class's sandboxes on this host.

use crate::spec::class::Class;
use crate::spec::facts::HostFacts;

/// The answer, and why it is so, in words for an operator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptMemory {
    /// Whether a pause keeps it where its caller does not say otherwise.
    pub is_kept: bool,
    /// Which program or setting decides it.
    pub why: String,
}

impl HostFacts {
    /// Whether pauses of this class keep memory. `None`: no host's do.
    #[must_use]
    pub fn kept_memory(&self, class: Class) -> Option<KeptMemory> {
        super::of(class).kept_memory(self)
    }
}
