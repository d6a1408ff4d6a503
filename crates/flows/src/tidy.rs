//! What is called when a full quota makes room.

/// Begins to remove files whose rows are erased, and returns at once.
pub(crate) struct Tidy(pub Box<dyn Fn() + Send + Sync>);

impl std::fmt::Debug for Tidy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tidy")
    }
}
