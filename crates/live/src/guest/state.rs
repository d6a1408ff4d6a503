//! What a sandbox uses, what its commands find in their environment, and whether it lives on.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use cofferdam_contracts::id::LiveId;
use cofferdam_sandbox::inside::Usage;
use serde::{Deserialize, Serialize};

use crate::accounts::Account;
use crate::guest::error::GuestError;
use crate::guest::message::GuestMessage;
use crate::handle::LiveHandle;

/// What a sandbox uses, as it says: a program inside may have taken the agent over.
#[derive(Debug, Serialize, Deserialize)]
pub struct ReadUsage;

/// What a sandbox uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestUsage {
    /// As it says.
    pub usage: Usage,
    /// How long this life of it has lasted.
    pub lived_ms: u64,
}

/// What every command of a sandbox finds in its environment.
#[derive(Debug, Serialize, Deserialize)]
pub struct ReadEnvironment;

/// What every command of a sandbox finds in its environment at this moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestEnvironment {
    /// The network's variables, then the caller's.
    pub variables: BTreeMap<String, String>,
    /// Whether it reaches any name.
    pub is_connected: bool,
}

/// Variables of a command without a network: pip and npm would try again for a minute what cannot work.
const UNCONNECTED: [(&str, &str); 2] = [("PIP_RETRIES", "0"), ("npm_config_fetch_retries", "0")];

impl GuestEnvironment {
    /// Environment of a command that this user runs there. Pure.
    #[must_use]
    pub fn of(self, account: Account, sandbox: &LiveId) -> BTreeMap<String, String> {
        let mut all = account.environment();
        all.insert("E2B_SANDBOX_ID".to_owned(), sandbox.to_string());
        let alone = UNCONNECTED.into_iter().filter(|_| !self.is_connected);
        all.extend(alone.map(|(name, value)| (name.to_owned(), value.to_owned())));
        all.extend(self.variables);
        all
    }
}

/// Whether a sandbox lives on, and is not ordered to end.
#[derive(Debug, Serialize, Deserialize)]
pub struct CheckAlive;

/// The same for a request that might resume it: waits while its files are read, for so long.
#[derive(Debug, Serialize, Deserialize)]
pub struct AwaitAlive {
    /// The longest that it waits.
    pub patience: Duration,
}

impl GuestMessage for ReadUsage {
    type Reply = GuestUsage;

    async fn answer(self, held: &Arc<LiveHandle>) -> Result<GuestUsage, GuestError> {
        let usage = held.agent.metrics().await?;
        Ok(GuestUsage { usage, lived_ms: held.since.elapsed_ms() })
    }
}

impl GuestMessage for ReadEnvironment {
    type Reply = GuestEnvironment;

    async fn answer(self, held: &Arc<LiveHandle>) -> Result<GuestEnvironment, GuestError> {
        Ok(GuestEnvironment { variables: held.env(), is_connected: !held.egress().is_none() })
    }
}

impl GuestMessage for CheckAlive {
    type Reply = bool;

    async fn answer(self, held: &Arc<LiveHandle>) -> Result<bool, GuestError> {
        Ok(held.goes_on())
    }
}

impl GuestMessage for AwaitAlive {
    type Reply = bool;

    async fn answer(self, held: &Arc<LiveHandle>) -> Result<bool, GuestError> {
        Ok(held.stays(self.patience).await)
    }
}
