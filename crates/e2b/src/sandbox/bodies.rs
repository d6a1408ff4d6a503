//! Bodies that several routes of sandboxes take.

use serde::Deserialize;

pub(crate) const OLD_S: u64 = 15;

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Timeout {
    pub(crate) timeout: Option<u64>,
    /// Of a connect and a resume; `false`: its files alone, whatever was kept.
    pub(crate) memory: Option<bool>,
    #[serde(rename = "autoPause")]
    pub(crate) auto_pause: Option<bool>,
}
