//! Who decides about calls of models, as the endpoint in a sandbox sees it.

use std::fmt::Debug;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use cofferdam_contracts::model::ModelProtocol;
use tokio::sync::{Semaphore, mpsc};

/// MiB of bodies that one sandbox has under way: two of the largest.
const BODIES_MB: usize = 64;

/// A call of a model, as an agent made it.
#[derive(Debug, Clone)]
pub struct ModelCall {
    /// Its wire format.
    pub protocol: ModelProtocol,
    /// Headers that a provider may get, in lower case.
    pub headers: Vec<(&'static str, String)>,
    /// Its body, whole.
    pub body: Bytes,
    /// Whether its tokens are counted and nothing is written.
    pub counts: bool,
}

/// An answer broke off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the answer broke off")]
pub struct ModelCut;

/// What an agent is answered.
#[derive(Debug)]
pub struct ModelReply {
    /// HTTP status of the answer, the provider's or that of a refusal.
    pub status: u16,
    /// Headers, in lower case.
    pub headers: Vec<(&'static str, String)>,
    /// The body, as it comes. An error ends the connection, so that nobody takes a part for the whole.
    pub body: mpsc::Receiver<Result<Bytes, ModelCut>>,
}

/// Who decides about calls, sends them and records them.
pub trait ModelGateway: Debug + Send + Sync + 'static {
    /// Answers one call. Dropping the reply's body gives the call up.
    fn call(self: Arc<Self>, call: ModelCall) -> Pin<Box<dyn Future<Output = ModelReply> + Send>>;

    /// Names of the models that a call of any protocol may name, each once.
    fn models(self: Arc<Self>) -> Pin<Box<dyn Future<Output = Vec<String>> + Send>>;
}

/// What a flow of the endpoint needs.
#[derive(Debug, Clone)]
pub(crate) struct ModelEndpoint {
    pub gateway: Option<Arc<dyn ModelGateway>>,
    /// Room for request bodies under way, one permit for each MiB.
    pub room: Arc<Semaphore>,
}

impl ModelEndpoint {
    pub(crate) fn new(gateway: Option<Arc<dyn ModelGateway>>) -> Self {
        Self { gateway, room: Arc::new(Semaphore::new(BODIES_MB)) }
    }
}
