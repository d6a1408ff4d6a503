//! Layers of paused sandboxes: in memory until they are sealed, and for a while after that.

pub(crate) mod layers;
pub(crate) mod left;
pub(crate) mod lend;
pub(crate) mod plain;
pub(crate) mod rest;
pub(crate) mod sealer;
pub(crate) mod sealer_line;
pub(crate) mod spare;
