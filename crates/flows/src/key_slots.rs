//! So many slots for each key, such as a tenant: who sends much waits for itself.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The slots of all keys.
#[derive(Debug)]
pub struct KeySlots<K> {
    each: usize,
    taken: Mutex<HashMap<K, Arc<Semaphore>>>,
}

impl<K: Eq + Hash + Clone> KeySlots<K> {
    /// So many for each of them.
    #[must_use]
    pub fn of(each: usize) -> Self {
        Self { each, taken: Mutex::default() }
    }

    /// A slot of this key's until it is dropped; `None`: none was free in this time.
    pub async fn take(&self, key: &K, patience: Duration) -> Option<OwnedSemaphorePermit> {
        let place = self.places(key).acquire_owned();
        tokio::time::timeout(patience, place).await.ok()?.ok()
    }

    /// Waits for one, however long; `None` never, as no slots are closed.
    pub async fn wait(&self, key: &K) -> Option<OwnedSemaphorePermit> {
        self.places(key).acquire_owned().await.ok()
    }

    fn places(&self, key: &K) -> Arc<Semaphore> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        // Of a key that has none nothing stays.
        taken.retain(|_, places| Arc::strong_count(places) > 1);
        let own = taken.entry(key.clone()).or_insert_with(|| Arc::new(Semaphore::new(self.each)));
        Arc::clone(own)
    }
}

#[cfg(test)]
mod tests {
    use cofferdam_contracts::canonical::digest_bytes;
    use cofferdam_contracts::id::TenantId;

    use super::*;

    #[tokio::test]
    async fn a_tenant_without_a_place_is_forgotten() {
        let places = KeySlots::of(1);
        let [one, other] = ["one", "other"].map(|name| TenantId::parse(name).unwrap());
        let soon = Duration::from_millis(20);
        let held = places.take(&one, soon).await.unwrap();
        assert!(places.take(&one, soon).await.is_none());
        drop(places.take(&other, soon).await.unwrap());
        drop(held);
        drop(places.take(&other, soon).await.unwrap());
        assert_eq!(places.taken.lock().unwrap().len(), 1);
    }

    #[tokio::test]
    async fn one_task_at_a_time_makes_a_copy_and_another_copy_waits_for_none() {
        let turns = KeySlots::of(1);
        let (one, two) = (digest_bytes(b"1"), digest_bytes(b"2"));
        let held = turns.wait(&one).await;
        let soon = Duration::from_millis(20);
        assert!(tokio::time::timeout(soon, turns.wait(&one)).await.is_err());
        drop(turns.wait(&two).await);
        drop(held);
        drop(turns.wait(&one).await);
        assert_eq!(turns.taken.lock().unwrap().len(), 1, "of the others nothing stays");
    }
}
