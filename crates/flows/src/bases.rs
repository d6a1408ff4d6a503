//! Bases of the dependency cache as their tenants order about them; `cache` keeps them on this host.

use cofferdam_contracts::cache::CacheEviction;
use cofferdam_contracts::error::Refusal;
use cofferdam_contracts::id::Digest;
use cofferdam_ledger::Ledger;
use cofferdam_ledger::audit::Audit;
use cofferdam_ledger::keys::Principal;

use crate::error::Result;

/// The bases of this installation's tenants.
#[derive(Debug, Clone)]
pub struct Bases {
    ledger: Ledger,
}

impl Bases {
    pub(crate) fn new(ledger: &Ledger) -> Self {
        Self { ledger: ledger.clone() }
    }

    /// Nobody gets this base of the tenant any more, and its hosts take it away.
    pub async fn forget(&self, who: &Principal, key: &Digest) -> Result<CacheEviction> {
        let audit = Audit::by(who, "cache.forget", key.as_str());
        let doomed = self.ledger.cache().doom(&who.tenant, Some(key), 0, &audit).await?;
        if doomed == 0 {
            return Err(Refusal::not_found("base of the dependency cache").into());
        }
        Ok(CacheEviction { doomed })
    }

    /// The same for every base of the tenant that nobody had for so long.
    pub async fn evict(&self, who: &Principal, older_than_s: i64) -> Result<CacheEviction> {
        let idle_ms = older_than_s.saturating_mul(1_000);
        let which = format!("older than {older_than_s} s");
        let audit = Audit::by(who, "cache.evict", &which);
        let doomed = self.ledger.cache().doom(&who.tenant, None, idle_ms, &audit).await?;
        Ok(CacheEviction { doomed })
    }
}
