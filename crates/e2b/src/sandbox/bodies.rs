//! Bodies that several routes of sandboxes take.

use schemars::JsonSchema;
use serde::Deserialize;

pub(crate) const OLD_S: u64 = 15;

/// How long a sandbox is to live, and how a paused one resumes.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct TimeoutRequest {
    /// Seconds from now.
    pub(crate) timeout: Option<u64>,
    /// Of a connect and a resume: `false` resumes with the files only.
    pub(crate) memory: Option<bool>,
    /// Of a connect and a resume: whether the resumed sandbox pauses at its timeout.
    #[serde(rename = "autoPause")]
    pub(crate) auto_pause: Option<bool>,
}
