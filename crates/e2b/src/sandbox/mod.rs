//! Routes of sandboxes.

pub(crate) mod answers;
pub(crate) mod bodies;
pub(crate) mod connect;
pub(crate) mod create;
pub(crate) mod detail;
pub(crate) mod fork;
pub(crate) mod kill;
pub(crate) mod list;
pub(crate) mod logs;
pub(crate) mod metrics;
pub(crate) mod network;
pub(crate) mod pause;
pub(crate) mod refusals;
pub(crate) mod resume;
pub(crate) mod snapshots;
pub(crate) mod timeout;
