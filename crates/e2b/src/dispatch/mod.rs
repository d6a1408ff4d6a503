//! Which request is answered by what.

pub(crate) mod control;
pub(crate) mod envd;
pub(crate) mod port;
