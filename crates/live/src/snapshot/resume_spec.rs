//! What is kept with a sandbox's files, so that it is asked for once more with them.

use cofferdam_contracts::live::LiveRequest;
use serde::{Deserialize, Serialize};

use crate::template::resolved_template::BuildOutput;
use crate::tokens::Tokens;

/// The saved request of a snapshot: what a sandbox with its files is asked for.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ResumeSpec {
    pub request: LiveRequest,
    /// The image below its files; `None`: the host's programs.
    pub image: Option<String>,
    /// Its tokens, where its next life has the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<Tokens>,
    /// Whether its memory is before its files.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub memory: bool,
    /// Whether that is behind its files instead.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub memory_last: bool,
    /// Of a built template, or of a sandbox that was made from one: what the build left.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub built: Option<BuildOutput>,
}
