//! What a flow of one phase needs to know.

use std::sync::Arc;

use cofferdam_ambient::clock;
use tokio::io::{AsyncRead, AsyncWrite};

use super::desk::Desk;
use super::dial::Dialer;
use super::forward::PageLinks;
use super::keyring::Keyring;
use super::model_desk::ModelDoor;
use super::policy::{Name, Refused, Rules};
use super::violation::Log;

/// A client that opened a connection says what it wants within this time.
pub(crate) const FIRST_WORD_MS: u64 = 10_000;

/// The sandbox's end of a flow.
pub(crate) trait Client: AsyncRead + AsyncWrite + Send + Unpin + 'static {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin + 'static> Client for T {}

/// What a flow needs to know.
#[derive(Debug, Clone)]
pub(crate) struct Context {
    /// What the phase's policy lists.
    pub listed: Arc<Rules>,
    pub dialer: Arc<Dialer>,
    pub log: Arc<Log>,
    pub desk: Arc<Desk>,
    /// Where the sandbox has secrets, how they are added.
    pub keys: Option<Arc<Keyring>>,
    /// What pages of the phase's mirrors linked to.
    pub links: Arc<PageLinks>,
    /// Where calls of models go.
    pub models: ModelDoor,
}

impl Context {
    /// Records a refusal; whether a person will be asked to lift it.
    pub(crate) fn refuse(&self, refused: &Refused) -> bool {
        self.log.record(self.listed.phase, refused, clock::now_ms());
        self.desk.ask(&self.listed, refused)
    }

    /// What is listed or granted at this moment.
    pub(crate) fn rules(&self) -> Arc<Rules> {
        self.desk.rules(&self.listed)
    }

    /// Ends what carries a granted name's bytes when the grant does.
    pub(crate) async fn within<T>(&self, name: &Name, flow: impl Future<Output = T>) -> Option<T> {
        match self.desk.left(&self.listed, name) {
            None => Some(flow.await),
            Some(left) => tokio::time::timeout(left, flow).await.ok(),
        }
    }
}
