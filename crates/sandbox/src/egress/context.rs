//! What a flow of one phase needs to know.

use std::sync::Arc;

use cofferdam_ambient::clock;
use cofferdam_contracts::sandbox::Phase;
use tokio::io::{AsyncRead, AsyncWrite};

use super::asks::AskQueue;
use super::dial::Dialer;
use super::forward::PageLinks;
use super::keyring::Keyring;
use super::model_gateway::ModelEndpoint;
use super::phase_rules::{FlowAdmissions, PhaseRules};
use super::policy::{EgressRefusal, Name, Rule, Rules, Wire};
use super::violation::Log;

/// A client that opened a connection says what it wants within this time.
pub(crate) const FIRST_WORD_MS: u64 = 10_000;

/// The sandbox's end of a flow.
pub(crate) trait Client: AsyncRead + AsyncWrite + Send + Unpin + 'static {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin + 'static> Client for T {}

/// What a flow needs to know.
#[derive(Debug, Clone)]
pub(crate) struct Context {
    /// The phase that it is of.
    pub phase: Phase,
    /// What the phase's policy lists.
    pub listed: PhaseRules,
    /// What this flow was admitted to.
    pub admitted: FlowAdmissions,
    pub dialer: Arc<Dialer>,
    pub log: Arc<Log>,
    pub gateway: Arc<AskQueue>,
    /// Where the sandbox has an authority of its own, how TLS is ended and secrets are added.
    pub keys: Option<Arc<Keyring>>,
    /// What pages of the phase's mirrors linked to.
    pub links: Arc<PageLinks>,
    /// Where calls of models go.
    pub models: ModelEndpoint,
}

impl Context {
    /// Records a refusal; whether a person will be asked to lift it.
    pub(crate) fn refuse(&self, refused: &EgressRefusal) -> bool {
        self.log.record(self.phase, refused, clock::now_ms());
        self.gateway.ask(&self.listed.now(), refused)
    }

    /// The same for another flow, which was admitted to nothing yet.
    pub(crate) fn of_flow(&self) -> Self {
        Self { admitted: FlowAdmissions::default(), ..self.clone() }
    }

    /// The name that this flow asks for, which it is noted with, or why it is refused.
    pub(crate) fn admit(
        &self,
        host: &str,
        port: u16,
        wire: Wire,
    ) -> Result<(Name, Rule), EgressRefusal> {
        self.admitted.admit(|| {
            let rules = self.rules();
            let (name, rule) = rules.admit(host, port, wire)?;
            Ok((name.clone(), rule.clone()))
        })
    }

    /// What is listed or granted at this moment.
    pub(crate) fn rules(&self) -> Arc<Rules> {
        self.gateway.rules(&self.listed.now())
    }

    /// Ends what carries a granted name's bytes when the grant does.
    pub(crate) async fn within<T>(&self, name: &Name, flow: impl Future<Output = T>) -> Option<T> {
        match self.gateway.left(&self.listed.now(), name) {
            None => Some(flow.await),
            Some(left) => tokio::time::timeout(left, flow).await.ok(),
        }
    }
}
