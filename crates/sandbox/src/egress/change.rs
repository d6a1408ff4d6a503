//! Another policy for the task's phase of a sandbox that runs.
//!
//! ```text
//! names -> rules -> {served: set, end what is not listed any more | nothing served: open | no name left: end all, close}
//! ```
//! **A change that fails leaves the policy before it.** What is listed as it was goes on.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use cofferdam_contracts::egress::Entry as EgressEntry;
use cofferdam_contracts::sandbox::Phase;
use tokio::sync::oneshot;

use super::policy::Name;
use super::serve::Change;
use super::{
    Egress, EgressError, PhaseNet, PhaseRequest, PhaseState, PlannedLists, Resources, stop,
};

/// A network that is in force.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ActiveNetwork {
    /// Variables by which programs find the network from now on.
    pub env: BTreeMap<String, String>,
    /// Names that the proxy admits: mirrors are there by the names of their hosts.
    pub names: Vec<String>,
    /// Connections that the change to it ended.
    pub cut: usize,
}

impl PlannedLists {
    /// Names of the task's phase alone.
    pub(crate) fn of_exec(names: &[EgressEntry]) -> Self {
        Self { exec: names.to_vec(), ..Self::default() }
    }
}

impl Resources {
    /// What the task's phase of this sandbox is to reach from now on, its mirrors resolved.
    pub(crate) async fn resolve(
        &self,
        names: &[EgressEntry],
        egress: &Egress,
    ) -> Result<PhaseNet, EgressError> {
        let wanted = PhaseRequest { phase: Phase::Exec, asks: false, names, secrets: &[] };
        let keys = egress.keys.as_ref();
        let serves =
            |name: &Name| keys.is_some_and(|keys| keys.authority.server_config(name).is_some());
        // The sandbox keeps the certificates that it was shown, so a mirror that needs another one is there by its alias.
        self.phase(wanted, &mut None::<PathBuf>, serves).await
    }
}

impl Egress {
    /// Makes this the policy of the task's phase, which has begun. When it returns, nothing moves any more that it does not
    /// list.
    ///
    /// # Errors
    /// Its sandbox ends, or the proxy could not listen: the policy before it is in force.
    pub(crate) async fn change(&self, net: PhaseNet) -> Result<ActiveNetwork, EgressError> {
        let mut state = self.state.lock().await;
        if state.is_over || state.phase != Some(Phase::Exec) {
            return Err(EgressError::Ended);
        }
        let cut = self.apply(&mut state, &net).await?;
        state.exec = net;
        Ok(ActiveNetwork { cut, ..self.seen(&state) })
    }

    /// What is in force.
    pub(crate) async fn now(&self) -> ActiveNetwork {
        self.seen(&*self.state.lock().await)
    }

    fn seen(&self, PhaseState { exec, .. }: &PhaseState) -> ActiveNetwork {
        ActiveNetwork { env: self.variables(Phase::Exec, exec), names: exec.rules.names(), cut: 0 }
    }

    async fn apply(&self, state: &mut PhaseState, net: &PhaseNet) -> Result<usize, EgressError> {
        let has_network = self.has_network(Phase::Exec, &net.rules);
        let told = match &state.serving {
            Some(served) => {
                let (done, ended) = oneshot::channel();
                let change = Change { rules: Arc::clone(&net.rules), done };
                match served.changes.send(change).await {
                    Ok(()) => ended.await.ok(),
                    Err(_) => None,
                }
            }
            None => None,
        };
        match (told, has_network) {
            (Some(cut), true) => Ok(cut),
            (told, false) => {
                if let Some(entry) = stop(state).await {
                    entry.close().await;
                }
                Ok(told.unwrap_or(0))
            }
            (None, true) => {
                // Nothing is served, or its server has ended by itself, which closed its sockets.
                drop(stop(state).await);
                let entry = self.way.open().await?;
                let rules = Arc::clone(&net.rules);
                state.serving = Some(self.served(entry, Phase::Exec, rules));
                Ok(0)
            }
        }
    }
}
