//! What the machines of a host are made from, before anybody asks for one.

use std::sync::Arc;

use crate::life::warm::WarmPool;
use crate::machine::{ImageCache, Pool};

/// Disk images, stored machines and waiting machines of one worker.
#[derive(Debug, Clone, Default)]
pub(crate) struct Machines {
    images: Arc<ImageCache>,
    pool: Arc<Pool>,
    warm: Arc<WarmPool>,
}

impl Machines {
    /// Descriptions of roots that many machines share, by the root's path and inode.
    pub fn images(&self) -> Arc<ImageCache> {
        Arc::clone(&self.images)
    }

    /// Machines that are stored.
    pub fn pool(&self) -> Arc<Pool> {
        Arc::clone(&self.pool)
    }

    /// Machines that wait.
    pub fn warm(&self) -> Arc<WarmPool> {
        Arc::clone(&self.warm)
    }
}
