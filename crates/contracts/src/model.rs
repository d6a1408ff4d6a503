//! Calls of models: who may be called, at what price, within which budget, and what came of it.
//!
//! ```text
//! sandbox -> 127.0.0.53:3129 /v1/... -> ModelRequest -> budget, one transaction -> the provider
//!                                        answer -> AnswerMeter -> ModelUsage -> the call's row
//! ```
//! Money is a whole number of micro-units of the operator's currency, never a float.

mod bound;
mod budget_ask;
mod call;
mod fit;
mod meter;
mod price;
mod provider;
mod refusal;
mod request;
mod spec;
mod usage;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use bound::{BoundError, CallBound, bound, previews, with_output};
pub use budget_ask::{BudgetAsk, BudgetMetric};
pub use call::{CallScope, ModelCallRow, ModelOutcome, ModelSpend};
pub use fit::{CallAllowance, LEAST_OUTPUT, least_output, with_less_output};
pub use meter::{AnswerMeter, AnswerSummary};
pub use price::{MICROS, ModelPrice, ModelUsage, money};
pub use provider::{ModelProvider, ProviderRemoval, ProviderRow};
pub use refusal::refusal_body;
pub use request::{ModelRequest, ModelRequestError};
pub use spec::{ModelBudget, ModelLimit, ModelsSpec, grant_form};

use crate::enum_names::named;

/// Bytes of a request's body: what the largest public provider takes.
pub const MAX_REQUEST_BYTES: usize = 32 * 1024 * 1024;
/// Bytes of an answer that are passed on; the rest is cut. Hundreds of times the longest text that a model writes.
pub const MAX_ANSWER_BYTES: u64 = 64 * 1024 * 1024;
/// Calls of one sandbox, refused ones included: each is a row.
pub const MAX_CALLS: u64 = 10_000;

named! {
    /// The wire format of a call.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
    pub enum ModelProtocol {
        /// OpenAI's chat completions.
        OpenaiChat = "openai-chat",
        /// OpenAI's Responses API, at `/v1/responses` in a sandbox.
        OpenaiResponses = "openai-responses",
        /// Anthropic's Messages API, at `/v1/messages` in a sandbox.
        AnthropicMessages = "anthropic-messages",
    }
}

impl ModelProtocol {
    /// The path below a provider's base URL, which is also the path inside a sandbox below `/v1`.
    #[must_use]
    pub const fn path(self) -> &'static str {
        match self {
            Self::OpenaiChat => "/chat/completions",
            Self::OpenaiResponses => "/responses",
            Self::AnthropicMessages => "/messages",
        }
    }

    /// Members of a body that bound its output; the first is the one that is added where a body has none.
    pub(crate) const fn output_members(self) -> &'static [&'static str] {
        match self {
            Self::OpenaiChat => &["max_completion_tokens", "max_tokens"],
            Self::OpenaiResponses => &["max_output_tokens"],
            Self::AnthropicMessages => &["max_tokens"],
        }
    }

    /// What a path below a call's own says, where the provider counts the tokens of a call without making it.
    pub const COUNT: &str = "/count_tokens";

    /// The protocol of a path inside a sandbox at which tokens are counted.
    #[must_use]
    pub fn counted_at(path: &str) -> Option<Self> {
        let protocol = Self::of_path(path.strip_suffix(Self::COUNT)?)?;
        (protocol == Self::AnthropicMessages).then_some(protocol)
    }

    /// The protocol of a path inside a sandbox.
    #[must_use]
    pub fn of_path(path: &str) -> Option<Self> {
        let below = path.strip_prefix("/v1").unwrap_or(path);
        Self::ALL.iter().copied().find(|protocol| protocol.path() == below)
    }
}

#[cfg(test)]
mod tests {
    use super::ModelProtocol::{self, AnthropicMessages, OpenaiChat, OpenaiResponses};

    #[test]
    fn a_path_names_its_protocol_with_and_without_the_version() {
        for (path, protocol) in [
            ("/v1/chat/completions", Some(OpenaiChat)),
            ("/chat/completions", Some(OpenaiChat)),
            ("/v1/responses", Some(OpenaiResponses)),
            ("/v1/messages", Some(AnthropicMessages)),
            ("/v1/messages/count_tokens", None),
            ("/v1/embeddings", None),
            ("/v1", None),
        ] {
            assert_eq!(ModelProtocol::of_path(path), protocol, "{path}");
        }
        for (path, protocol) in [
            ("/v1/messages/count_tokens", Some(AnthropicMessages)),
            ("/messages/count_tokens", Some(AnthropicMessages)),
            ("/v1/messages", None),
            ("/v1/responses/count_tokens", None),
            ("/count_tokens", None),
        ] {
            assert_eq!(ModelProtocol::counted_at(path), protocol, "{path}");
        }
    }
}
