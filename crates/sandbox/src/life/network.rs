//! The network of a sandbox, which a long-lived one's tenant may change while it lives.
//!
//! ```text
//! names at its creation: the proxy is there from the start
//! none: the first change that lists one gives it a resolver, certificates and the proxy
//! ```
//! **No change opens anything once the sandbox ends.**

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use cofferdam_contracts::egress::Entry as EgressEntry;
use cofferdam_contracts::error::error_chain;
use cofferdam_contracts::sandbox::Phase;
use cofferdam_guest::tree::NodeKind;
use tokio::sync::Mutex;

use super::error::BootError;
use super::write::put;
use crate::agent::Agent;
use crate::class;
use crate::egress::{
    self, ActiveNetwork, Egress, EgressError, EgressSetup, PlannedLists, Resources,
};
use crate::host::process::Netns;
use crate::host::task::blocking;
use crate::spec::class::Class;

/// The network of one sandbox.
#[derive(Debug, Clone)]
pub struct Network(Arc<Reach>);

#[derive(Debug)]
struct Reach {
    resources: Arc<Resources>,
    class: Class,
    netns: Option<Netns>,
    agent: Agent,
    /// Empty: no name was ever listed, so there is no proxy.
    egress: OnceLock<Egress>,
    /// Whether its sandbox ends; held while it is changed.
    is_over: Mutex<bool>,
}

/// Why a network was not changed: the one before is in force.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NetworkError {
    /// Its sandbox ends.
    #[error("the sandbox is ending")]
    Over,
    /// It cannot be had here.
    #[error("{0}")]
    Failed(String),
}

fn failed(error: &(dyn std::error::Error + 'static)) -> NetworkError {
    NetworkError::Failed(error_chain(error))
}

impl Network {
    pub(crate) fn new(
        resources: Arc<Resources>,
        class: Class,
        netns: Option<Netns>,
        agent: Agent,
    ) -> Self {
        let (egress, is_over) = (OnceLock::new(), Mutex::default());
        Self(Arc::new(Reach { resources, class, netns, agent, egress, is_over }))
    }

    pub(crate) fn egress(&self) -> Option<&Egress> {
        self.0.egress.get()
    }

    /// Opens the proxy of a plan that lists names.
    pub(crate) fn open(&self, prepared: EgressSetup) -> Result<(), EgressError> {
        // It is opened once, by what makes the sandbox.
        let _ = self.0.egress.set(self.opened(prepared)?);
        Ok(())
    }

    fn opened(&self, prepared: EgressSetup) -> Result<Egress, EgressError> {
        let way = class::of(self.0.class).supervision.way(self.0.netns.clone(), &self.0.agent);
        prepared.open(way)
    }

    /// Makes these the names that the commands reach. When it returns, no connection to another one is left; those to names
    /// that stay go on.
    ///
    /// # Errors
    /// The sandbox ends, or the network cannot be had: the one before is in force.
    pub async fn change(&self, names: &[EgressEntry]) -> Result<ActiveNetwork, NetworkError> {
        let is_over = self.0.is_over.lock().await;
        if *is_over {
            return Err(NetworkError::Over);
        }
        let Some(egress) = self.egress() else { return self.begin(names).await };
        let net = self.0.resources.resolve(names, egress).await.map_err(|e| failed(&e))?;
        egress.change(net).await.map_err(|error| match error {
            EgressError::Ended => NetworkError::Over,
            error => failed(&error),
        })
    }

    /// The first names of a sandbox that began without any.
    async fn begin(&self, names: &[EgressEntry]) -> Result<ActiveNetwork, NetworkError> {
        let planned = PlannedLists::of_exec(names);
        let prepared = self.0.resources.prepare(&planned).await.map_err(|e| failed(&e))?;
        let Some(prepared) = prepared else {
            return Ok(ActiveNetwork { env: BTreeMap::new(), names: Vec::new(), cut: 0 });
        };
        furnish(&self.0.agent, &prepared, false).await.map_err(|e| failed(&e))?;
        let egress = self.opened(prepared).map_err(|e| failed(&e))?;
        egress.enter(Phase::Exec).await.map_err(|e| failed(&e))?;
        let now = egress.now().await;
        // This alone sets it from here on, and holds the lock.
        let _ = self.0.egress.set(egress);
        Ok(now)
    }

    /// Ends it: no connection is left when it returns, and none is opened any more.
    pub(crate) async fn close(&self) {
        *self.0.is_over.lock().await = true;
        if let Some(egress) = self.egress() {
            egress.close().await;
        }
    }
}

/// Gives programs what they need besides the proxy: a resolver, and certificates where they are not shown already.
pub(crate) async fn furnish(
    agent: &Agent,
    prepared: &EgressSetup,
    is_shown: bool,
) -> Result<(), BootError> {
    put(agent, egress::RESOLV_CONF, 0o644, None, EgressSetup::resolv_conf().into()).await?;
    if let Some(certificates) = prepared.own_ca()? {
        return furnish_trust(agent, certificates).await;
    }
    match prepared.ca().filter(|_| !is_shown).map(Path::to_path_buf) {
        Some(ca) => {
            let read = blocking(move || std::fs::read(ca)).await;
            let certificates = read.map_err(EgressError::Certificates)?;
            put(agent, egress::CA_PATH, 0o444, None, certificates.into()).await
        }
        None => Ok(()),
    }
}

/// Makes programs trust the sandbox's own authority: by the file that their variables name, and those that look at no variable
/// by files of their own.
async fn furnish_trust(agent: &Agent, certificates: Bytes) -> Result<(), BootError> {
    put(agent, egress::CA_PATH, 0o444, None, certificates.clone()).await?;
    put(agent, egress::WGETRC_PATH, 0o444, None, egress::WGETRC.into()).await?;
    let mut store = None;
    for path in egress::JAVA_STORES {
        if !agent.files().stat(path).await.is_ok_and(|entry| entry.kind == NodeKind::File) {
            continue;
        }
        let store = store.get_or_insert_with(|| EgressSetup::java_store(&certificates)).clone();
        // A tenant's own root may have one that cannot be written; then Java trusts what it did.
        if let Err(error) = put(agent, path, 0o644, None, store).await {
            tracing::info!(%error, path, "Java inside does not trust the sandbox's own authority");
        }
    }
    Ok(())
}
