//! The process environment, read once at the edge and passed on as values.

#![expect(clippy::disallowed_methods, reason = "this is the module that the determinism law names")]

use std::ffi::OsString;

/// A variable's text; `None` where it is unset, empty or not UTF-8.
#[must_use]
pub fn var(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// A variable as the system holds it.
#[must_use]
pub fn var_os(name: &str) -> Option<OsString> {
    std::env::var_os(name)
}
