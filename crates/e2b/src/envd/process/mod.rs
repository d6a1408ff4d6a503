//! `process.Process`: the commands of a sandbox, and who follows them.

pub(crate) mod command_notes;
pub(crate) mod connect;
pub(crate) mod follow;
pub(crate) mod input;
pub(crate) mod list;
pub(crate) mod select;
pub(crate) mod signal;
pub(crate) mod start;
pub(crate) mod terminal;
