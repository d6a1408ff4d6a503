//! Sandboxes that are given up while they begin: what has begun of one is ended at once, and not when it is done.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cofferdam_contracts::id::SandboxId;
use tokio::sync::Notify;

/// Those of one worker.
#[derive(Debug, Clone, Default)]
pub(crate) struct UnwantedIds(Arc<UnwantedSet>);

#[derive(Debug, Default)]
struct UnwantedSet {
    ids: Mutex<BTreeSet<SandboxId>>,
    changed: Notify,
}

/// For as long as it lives, its sandbox is not wanted.
#[derive(Debug)]
#[must_use]
pub struct GivenUp {
    of: UnwantedIds,
    id: SandboxId,
}

impl UnwantedIds {
    pub fn give_up(&self, id: &SandboxId) -> GivenUp {
        self.lock().insert(id.clone());
        self.0.changed.notify_waiters();
        GivenUp { of: self.clone(), id: id.clone() }
    }

    /// Until this one is given up.
    pub async fn told(&self, id: &SandboxId) {
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

impl Drop for GivenUp {
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
        let all = UnwantedIds::default();
        let [one, other] = [1, 2].map(|n| SandboxId::parse(&format!("sb{n:020x}")).unwrap());
        let waiting = tokio::spawn({
            let (all, one) = (all.clone(), one.clone());
            async move { all.told(&one).await }
        });
        tokio::task::yield_now().await;
        let given_up = all.give_up(&one);
        waiting.await.unwrap();
        all.told(&one).await;
        let brief = Duration::from_millis(20);
        assert!(tokio::time::timeout(brief, all.told(&other)).await.is_err());
        drop(given_up);
        assert!(tokio::time::timeout(brief, all.told(&one)).await.is_err());
    }
}
