//! Runs: submitted, steered, retried and settled. Each operation is a file: `submit`, `intents`, `ops`, `retry`, `settle`.

use std::sync::Arc;

use cofferdam_ledger::Ledger;

use crate::admission::HostAdmission;
use crate::applies::Applies;
use crate::feed::Feeds;
use crate::fresh_ids::FreshIds;
use crate::models::Models;
use crate::quota::Quota;
use crate::tree_uploads::Uploads;
use crate::trees::RunTrees;

/// Runs of this installation's tenants.
#[derive(Debug, Clone)]
pub struct Runs {
    pub(crate) ledger: Ledger,
    pub(crate) ids: FreshIds,
    pub(crate) quota: Quota,
    pub(crate) models: Models,
    pub(crate) applies: Applies,
    pub(crate) admission: HostAdmission,
    pub(crate) trees: RunTrees,
    /// Outputs that clients of this process wait for.
    pub feeds: Arc<Feeds>,
}

impl Runs {
    pub(crate) fn new(
        ledger: &Ledger,
        ids: &FreshIds,
        quota: &Quota,
        models: &Models,
        applies: &Applies,
        sent: &Uploads,
    ) -> Self {
        Self {
            ledger: ledger.clone(),
            ids: ids.clone(),
            quota: quota.clone(),
            models: models.clone(),
            applies: applies.clone(),
            admission: HostAdmission::default(),
            trees: RunTrees::new(sent),
            feeds: Arc::default(),
        }
    }
}
