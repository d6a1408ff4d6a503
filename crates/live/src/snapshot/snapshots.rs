//! The kept files of sandboxes. Its methods are in the files that say what they do.

use crate::live::Live;

/// The kept files of sandboxes.
#[derive(Debug, Clone)]
pub struct Snapshots {
    pub(crate) live: Live,
}

impl Snapshots {
    /// Of this process.
    #[must_use]
    pub fn of(live: &Live) -> Self {
        Self { live: live.clone() }
    }
}
