//! `/files` of envd: bytes out of a sandbox and into it.

pub(crate) mod access;
pub(crate) mod download;
pub(crate) mod form;
pub(crate) mod gzip;
pub(crate) mod signature;
pub(crate) mod transfer;
pub(crate) mod upload;
