//! The layers of paused sandboxes. Its methods are in the files that say what they do.

use crate::live::Live;

/// The layers of paused sandboxes.
#[derive(Debug, Clone)]
pub(crate) struct Layers {
    pub(crate) live: Live,
}

impl Layers {
    /// Of this process.
    #[must_use]
    pub(crate) fn of(live: &Live) -> Self {
        Self { live: live.clone() }
    }
}
