//! Copies of host directories that are looked for now, or made.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use cofferdam_contracts::id::Digest;
use tokio::sync::OwnedMutexGuard;

/// One task at a time looks for a copy, and makes it where it is not there yet; the others find it.
#[derive(Debug)]
pub(crate) struct CopyTurns(Mutex<BTreeMap<Digest, Arc<tokio::sync::Mutex<()>>>>);

impl CopyTurns {
    pub(crate) const fn new() -> Self {
        Self(Mutex::new(BTreeMap::new()))
    }

    /// Waits for those that came before.
    pub(crate) async fn take(&self, copy: &Digest) -> OwnedMutexGuard<()> {
        let own = {
            let mut taken = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            // Of a copy that is given to no task now nothing stays.
            taken.retain(|_, own| Arc::strong_count(own) > 1);
            Arc::clone(taken.entry(copy.clone()).or_default())
        };
        own.lock_owned().await
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use cofferdam_contracts::canonical::digest_bytes;

    use super::*;

    #[tokio::test]
    async fn one_task_at_a_time_makes_a_copy_and_another_copy_waits_for_none() {
        let turns = CopyTurns::new();
        let (one, two) = (digest_bytes(b"1"), digest_bytes(b"2"));
        let held = turns.take(&one).await;
        let soon = Duration::from_millis(20);
        assert!(tokio::time::timeout(soon, turns.take(&one)).await.is_err());
        drop(turns.take(&two).await);
        drop(held);
        drop(turns.take(&one).await);
        assert_eq!(turns.0.lock().unwrap().len(), 1, "of the others nothing stays");
    }
}
