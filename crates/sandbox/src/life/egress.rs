//! What a sandbox tells of its network, and who decides about it.

use std::collections::BTreeMap;
use std::sync::Arc;

use cofferdam_contracts::error::error_chain;
use cofferdam_contracts::sandbox::{Phase, Violation};

use super::network::Network;
use crate::egress::{Egress, ModelGateway, NameRequest, NoRouteAttempts, SecretSource};

/// The connections of a sandbox.
#[derive(Debug, Clone, Copy)]
pub struct Traffic<'a> {
    pub(super) network: &'a Network,
    /// Attempts that no route leads anywhere.
    pub(super) unrouted: Option<&'a Arc<NoRouteAttempts>>,
}

impl<'a> Traffic<'a> {
    /// `None`: no name is listed or ever was, so there is no proxy.
    fn egress(self) -> Option<&'a Egress> {
        self.network.egress()
    }

    /// What the egress proxy refused so far, what never reached it because no route leads there, and
    /// how many attempts are not on the list.
    #[must_use]
    pub fn violations(self) -> (Vec<Violation>, u64) {
        let (mut list, unlisted) = self.egress().map(Egress::violations).unwrap_or_default();
        let looked = self.unrouted.map(|unrouted| unrouted.violations());
        let (unrouted, more) = looked.unwrap_or_default();
        list.extend(unrouted);
        (list, unlisted.saturating_add(more))
    }

    /// Names that the running phase was refused and asks for, since the last call.
    #[must_use]
    pub fn name_requests(self) -> Vec<NameRequest> {
        self.egress().map(Egress::asked).unwrap_or_default()
    }

    /// Admits a name that was asked for, in its phase and until a time (ms since the epoch). `false`: it was not asked for.
    #[must_use]
    pub fn grant(self, asked: &NameRequest, until_ms: i64) -> bool {
        self.egress().is_some_and(|egress| egress.grant(asked, until_ms))
    }

    /// Sets who decides about calls of models, before the first command. Without it each is refused.
    pub fn serve_models(self, gateway: Arc<dyn ModelGateway>) {
        if let Some(egress) = self.egress() {
            egress.serve_models(gateway);
        }
    }

    /// Ends its network: no connection is left when it returns.
    pub async fn close(self) {
        self.network.close().await;
    }

    /// Opens the network of a phase without a command, until the sandbox ends: the variables by which programs find
    /// it. For a sandbox whose commands come one by one.
    ///
    /// # Errors
    /// The network cannot be set up; in words.
    pub async fn open(self, phase: Phase) -> Result<BTreeMap<String, String>, String> {
        if let Some(unrouted) = self.unrouted {
            unrouted.enter(phase);
        }
        match self.egress() {
            Some(egress) => {
                let entered = egress.enter(phase).await;
                entered.map_err(|error| error_chain(&error))
            }
            None => Ok(BTreeMap::new()),
        }
    }

    /// From whom the secrets of its requests come; before its first command.
    pub fn set_secret_source(self, source: Arc<dyn SecretSource>) {
        if let Some(egress) = self.egress() {
            egress.keep_secrets(source);
        }
    }
}
