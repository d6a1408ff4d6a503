//! Who holds sandboxes, as the API's side reaches it.

use cofferdam_flows::Result;

use crate::live::Live;
use crate::message::Message;

/// Who holds sandboxes, as the API's side reaches it.
#[derive(Debug, Clone)]
pub struct LiveClient {
    /// In the same process, so far.
    live: Live,
}

impl LiveClient {
    /// Asks, and waits for the answer. One who hangs up ends what need not be finished.
    ///
    /// # Errors
    /// As the message says.
    pub async fn ask<M: Message>(&self, message: M) -> Result<M::Reply> {
        message.answer(&self.live).await
    }
}

impl Live {
    /// What the API asks.
    #[must_use]
    pub fn client(&self) -> LiveClient {
        LiveClient { live: self.clone() }
    }
}
