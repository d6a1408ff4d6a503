//! What envd's clients find on port 49983 of a sandbox.

pub(crate) mod account;
pub(crate) mod call;
pub(crate) mod entry;
pub(crate) mod environment;
pub(crate) mod files;
pub(crate) mod filesystem;
pub(crate) mod paths;
pub(crate) mod process;
pub(crate) mod state;
pub(crate) mod token;
pub(crate) mod usage;

/// envd's port in every sandbox.
pub(crate) const ENVD_PORT: u16 = 49_983;
/// The version whose behaviour is served: clients choose what they send by it.
pub(crate) const VERSION: &str = "0.6.13";
