//! One module a resource; each handler parses what the table could not, makes one call, and answers.

pub(crate) mod artifacts;
pub(crate) mod cache;
pub(crate) mod config;
pub(crate) mod delegations;
pub(crate) mod dispatches;
pub(crate) mod files;
pub(crate) mod gates;
pub(crate) mod health;
pub(crate) mod keys;
pub(crate) mod links;
pub(crate) mod models;
pub(crate) mod ops;
pub(crate) mod proofs;
pub(crate) mod recipes;
pub(crate) mod retention;
pub(crate) mod run_input;
pub(crate) mod run_list;
pub(crate) mod runs;
pub(crate) mod sandboxes;
pub(crate) mod secrets;
pub(crate) mod sessions;
pub(crate) mod trees;
pub(crate) mod triggers;
pub(crate) mod usage;
pub(crate) mod webhooks;
