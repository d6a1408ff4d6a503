//! Whether a tenant may store more. Layers of its builds make room first.
//!
//! Their files are removed by the crate that keeps them, which lies above this one: [`Quota::when_full`] says how.

use std::sync::{Arc, OnceLock};

use cofferdam_contracts::id::TenantId;
use cofferdam_ledger::Ledger;

use crate::error::Result;

/// The quotas of this installation's tenants.
#[derive(Debug, Clone)]
pub struct Quota {
    ledger: Ledger,
    /// How files of rows that are erased are removed, where this process keeps some.
    cleanup: Arc<OnceLock<QuotaCleanup>>,
}

/// Begins to remove files whose rows are erased, and returns at once.
struct QuotaCleanup(Box<dyn Fn() + Send + Sync>);

impl std::fmt::Debug for QuotaCleanup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("QuotaCleanup")
    }
}

impl Quota {
    pub(crate) fn new(ledger: &Ledger) -> Self {
        Self { ledger: ledger.clone(), cleanup: Arc::default() }
    }

    /// When a tenant's quota is full and its layers make room, `cleanup` begins to remove their files. Set once.
    pub fn when_full(&self, cleanup: impl Fn() + Send + Sync + 'static) {
        // Whoever keeps files is made once for a process.
        let _ = self.cleanup.set(QuotaCleanup(Box::new(cleanup)));
    }

    /// Refuses where what the tenant has stored fills its quota, once its layers made room.
    ///
    /// # Errors
    /// The quota is full, or the ledger does not answer.
    pub async fn admit(&self, tenant: &TenantId) -> Result<()> {
        if self.ledger.runs().quota_admit(tenant).await?
            && let Some(cleanup) = self.cleanup.get()
        {
            cleanup.0();
        }
        Ok(())
    }
}
