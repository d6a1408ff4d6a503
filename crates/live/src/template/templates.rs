//! What sandboxes are made of. Its methods are in the files that say what they do.

use crate::live::Live;

/// What sandboxes are made of.
#[derive(Debug, Clone)]
pub struct Templates {
    pub(crate) live: Live,
}

impl Templates {
    /// Of this process.
    #[must_use]
    pub fn of(live: &Live) -> Self {
        Self { live: live.clone() }
    }
}
