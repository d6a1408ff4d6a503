//! The files of a sandbox, kept: sealed on this host's disk, on record, opened again, and erased.

pub(crate) mod allowance;
pub(crate) mod capture;
pub(crate) mod comparison;
pub(crate) mod copy;
pub(crate) mod eraser;
pub(crate) mod handles;
pub(crate) mod memory;
pub(crate) mod new_file;
pub(crate) mod open;
pub(crate) mod reader;
pub(crate) mod resume_spec;
pub(crate) mod snapshots;
pub(crate) mod space;
pub(crate) mod store;
pub(crate) mod sweep;
pub(crate) mod writer;
