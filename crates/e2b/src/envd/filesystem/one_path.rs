//! A message that is a path.

use serde::Deserialize;

/// A message that is a path.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct OnePath {
    pub path: String,
}
