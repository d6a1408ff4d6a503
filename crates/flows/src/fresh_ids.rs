//! Ids that this process draws.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cofferdam_ambient::random::Ids;

/// Ids that this process draws: of a subject, and of a number for what has no content of its own to be named by.
#[derive(Debug, Clone)]
pub struct FreshIds {
    ids: Ids,
    next: Arc<AtomicU64>,
}

impl FreshIds {
    /// From this source; its copies give no number twice.
    #[must_use]
    pub fn new(ids: Ids) -> Self {
        Self { ids, next: Arc::default() }
    }

    /// So many random bytes for this subject, as hexadecimal digits.
    #[must_use]
    pub fn hex(&self, subject: &str, bytes: usize) -> String {
        self.ids.hex(subject, bytes)
    }

    /// A number that this process gives once.
    pub(crate) fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }
}
