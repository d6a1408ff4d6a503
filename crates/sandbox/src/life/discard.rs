//! Sandboxes that are given up while they begin: what has begun of one is ended at once, and not when it is done.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cofferdam_contracts::id::SandboxId;
use tokio::sync::Notify;

/// The discarded sandboxes of one worker.
#[derive(Debug, Clone, Default)]
pub(crate) struct DiscardRegistry(Arc<DiscardSet>);

#[derive(Debug, Default)]
struct DiscardSet {
    ids: Mutex<BTreeSet<SandboxId>>,
    changed: Notify,
}

/// For as long as it lives, its sandbox is not wanted.
#[derive(Debug)]
#[must_use]
pub struct DiscardGuard {
    of: DiscardRegistry,
    id: SandboxId,
}

impl DiscardRegistry {
    pub fn discard(&self, id: &SandboxId) -> DiscardGuard {
        self.lock().insert(id.clone());
        self.0.changed.notify_waiters();
        DiscardGuard { of: self.clone(), id: id.clone() }
    }

    /// Until this one is discarded.
    pub async fn discarded(&self, id: &SandboxId) {
        loop {
            let changed = self.0.changed.notified();
            let mut changed = std::pin::pin!(changed);
            changed.as_mut().enable();
            if self.lock().contains(id) {
                return;
            }
            changed.await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeSet<SandboxId>> {
        self.0.ids.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for DiscardGuard {
    fn drop(&mut self) {
        self.of.lock().remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn one_that_is_given_up_is_told_whenever_it_listens_and_another_is_not() {
        let all = DiscardRegistry::default();
        let [one, other] = [1, 2].map(|n| SandboxId::parse(&format!("sb{n:020x}")).unwrap());
        let waiting = tokio::spawn({
            let (all, one) = (all.clone(), one.clone());
            async move { all.discarded(&one).await }
        });
        tokio::task::yield_now().await;
        let given_up = all.discard(&one);
        waiting.await.unwrap();
        all.discarded(&one).await;
        let brief = Duration::from_millis(20);
        assert!(tokio::time::timeout(brief, all.discarded(&other)).await.is_err());
        drop(given_up);
        assert!(tokio::time::timeout(brief, all.discarded(&one)).await.is_err());
    }
}
