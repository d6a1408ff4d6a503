//! Headers by which requests name a sandbox, and open it.

use axum::http::HeaderMap;

pub(crate) const ID: &str = "e2b-sandbox-id";
pub(crate) const PORT: &str = "e2b-sandbox-port";
pub(crate) const TOKEN: &str = "x-access-token";
pub(crate) const TRAFFIC: &str = "e2b-traffic-access-token";

/// A header's text.
pub(crate) fn carried<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}
