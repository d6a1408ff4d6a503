//! A running sandbox as the API's side has it.

use std::sync::Arc;

use tokio::sync::watch;

use crate::guest::error::GuestError;
use crate::guest::facts::Facts;
use crate::guest::message::GuestMessage;
use crate::handle::LiveHandle;
use crate::live::Live;

/// A running sandbox as the API's side has it: what is known of it, and where its inside is asked.
#[derive(Debug, Clone)]
pub struct Guest {
    /// What is known of it.
    pub facts: Arc<Facts>,
    /// Whether the key that its tokens were made for is revoked.
    revocation: watch::Receiver<bool>,
    live: Live,
}

impl Guest {
    pub(crate) fn of(live: &Live, held: &LiveHandle) -> Self {
        let (facts, revocation) = (Arc::clone(&held.facts), held.revocation());
        Self { facts, revocation, live: live.clone() }
    }

    /// Asks, and waits for the answer.
    ///
    /// # Errors
    /// This life of it is over, its streams are in use, or its agent says no.
    pub async fn ask<M: GuestMessage>(&self, message: M) -> Result<M::Reply, GuestError> {
        let held = self.live.0.registry.find(&self.facts.id);
        let held = held.filter(|held| held.facts.run == self.facts.run).ok_or(GuestError::Over)?;
        message.answer(&held).await
    }

    /// Whether the key that its tokens were made for is revoked: they open nothing any more.
    #[must_use]
    pub fn is_revoked(&self) -> bool {
        *self.revocation.borrow()
    }

    /// Until that key is revoked: what its tokens opened ends then.
    pub async fn revoked(&self) {
        let revoked = self.revocation.clone().wait_for(|is_revoked| *is_revoked).await.is_ok();
        if !revoked {
            // It is over, and nobody says anything of its key any more.
            std::future::pending::<()>().await;
        }
    }
}
