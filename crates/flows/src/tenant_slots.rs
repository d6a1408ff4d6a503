//! So many slots for each tenant: who sends much waits for itself.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use cofferdam_contracts::id::TenantId;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The slots of all tenants.
#[derive(Debug)]
pub struct TenantSlots {
    each: usize,
    taken: Mutex<HashMap<TenantId, Arc<Semaphore>>>,
}

impl TenantSlots {
    /// So many for each of them.
    #[must_use]
    pub fn of(each: usize) -> Self {
        Self { each, taken: Mutex::default() }
    }

    /// A slot of this tenant's until it is dropped; `None`: none was free in this time.
    pub async fn take(
        &self,
        tenant: &TenantId,
        patience: Duration,
    ) -> Option<OwnedSemaphorePermit> {
        let place = self.places(tenant).acquire_owned();
        tokio::time::timeout(patience, place).await.ok()?.ok()
    }

    fn places(&self, tenant: &TenantId) -> Arc<Semaphore> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        // Of a tenant that has none nothing stays.
        taken.retain(|_, places| Arc::strong_count(places) > 1);
        let own =
            taken.entry(tenant.clone()).or_insert_with(|| Arc::new(Semaphore::new(self.each)));
        Arc::clone(own)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_tenant_without_a_place_is_forgotten() {
        let places = TenantSlots::of(1);
        let [one, other] = ["one", "other"].map(|name| TenantId::parse(name).unwrap());
        let soon = Duration::from_millis(20);
        let held = places.take(&one, soon).await.unwrap();
        assert!(places.take(&one, soon).await.is_none());
        drop(places.take(&other, soon).await.unwrap());
        drop(held);
        drop(places.take(&other, soon).await.unwrap());
        assert_eq!(places.taken.lock().unwrap().len(), 1);
    }
}
