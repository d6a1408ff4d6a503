//! Whether pauses keep the memory of a class's sandboxes on this host.

/// The answer, and why it is so, in words for an operator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemorySupport {
    /// Whether a pause keeps it where its caller does not say otherwise.
    pub is_kept: bool,
    /// Which program or setting decides it.
    pub why: String,
}
