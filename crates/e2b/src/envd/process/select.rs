//! Which command a message is about.

use serde::Deserialize;

use crate::envd::state::processes::Selector;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SelectRequest {
    pub process: Selector,
}
