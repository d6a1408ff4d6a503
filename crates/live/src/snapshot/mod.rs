//! The files of a sandbox, kept: sealed on this host's disk, on record, opened again, and erased.

pub(crate) mod again;
pub(crate) mod compared;
pub(crate) mod copied;
pub(crate) mod eraser;
pub(crate) mod handles;
pub(crate) mod keep;
pub(crate) mod memory;
pub(crate) mod new_file;
pub(crate) mod open;
pub(crate) mod opened;
pub(crate) mod room;
pub(crate) mod sealed;
pub(crate) mod shelf;
pub(crate) mod snapshots;
pub(crate) mod space;
pub(crate) mod sweep;
