//! The stream of a sandbox's files, which the worker and a machine's init write and read alike.

pub(crate) use cofferdam_guest::upper::{measure, pack, pass, unpack};

#[cfg(test)]
mod tests;
