//! The public error codes: one closed list, one HTTP status each, one page each in `docs/errors`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

macro_rules! codes {
    ($($(#[doc = $doc:literal])+ $name:ident = ($text:literal, $status:literal);)+) => {
        /// What went wrong, for a program to branch on.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
        #[serde(rename_all = "snake_case")]
        pub enum ErrorCode {
            $($(#[doc = $doc])+ $name,)+
        }

        impl ErrorCode {
            /// Every code, in the order of the documentation.
            pub const ALL: &[Self] = &[$(Self::$name,)+];

            /// The code as it stands in a body.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => $text,)+ }
            }

            /// Its one HTTP status.
            #[must_use]
            pub const fn status(self) -> u16 {
                match self { $(Self::$name => $status,)+ }
            }

            /// What it means, in a sentence.
            #[must_use]
            pub const fn meaning(self) -> &'static str {
                match self { $(Self::$name => concat!($($doc),+),)+ }
            }
        }
    };
}

codes! {
    /// The body is not JSON, or not UTF-8.
    InvalidJson = ("invalid_json", 400);
    /// The body or query does not fit its schema; `details` lists every violation.
    SchemaViolation = ("schema_violation", 400);
    /// An id in the path or query has the wrong shape.
    InvalidId = ("invalid_id", 400);
    /// The request breaks a cap, a budget or a queue rule.
    QueuePolicyViolation = ("queue_policy_violation", 400);
    /// The request asks for something that policy forbids.
    PolicyViolation = ("policy_violation", 400);
    /// The recipe does not parse or does not hold together.
    RecipeInvalid = ("recipe_invalid", 400);
    /// The directory that a client sends breaks a rule or a bound: a name or link that leads out, too many files, other bytes.
    TreeInvalid = ("tree_invalid", 400);
    /// No key, or a key that is unknown or revoked.
    Unauthorized = ("unauthorized", 401);
    /// A delivery to a hook whose signature or time does not hold.
    SignatureInvalid = ("signature_invalid", 401);
    /// The key's roles do not allow this.
    Forbidden = ("forbidden", 403);
    /// A web page of another origin made this request.
    ForeignOrigin = ("foreign_origin", 403);
    /// A reply link that this installation did not make, or that was altered.
    LinkInvalid = ("link_invalid", 403);
    /// The thing does not exist, or belongs to another tenant.
    NotFound = ("not_found", 404);
    /// The path exists, but not with this method.
    MethodNotAllowed = ("method_not_allowed", 405);
    /// The body of the request did not arrive in time.
    RequestTimeout = ("request_timeout", 408);
    /// The request contradicts recorded truth, such as a replay with other content.
    Conflict = ("conflict", 409);
    /// The run, gate or workflow is not in a state that allows this.
    StateConflict = ("state_conflict", 409);
    /// The gate has another topic.
    TopicMismatch = ("topic_mismatch", 409);
    /// The dedupe key was used with another payload or topic.
    DedupeConflict = ("dedupe_conflict", 409);
    /// A reply link that is used, expired, or void because what it would approve has changed.
    LinkSpent = ("link_spent", 410);
    /// The content was erased; its record says by whom, when, why, how large it was and which hash it had.
    Erased = ("erased", 410);
    /// The body is larger than the stated limit.
    BodyTooLarge = ("body_too_large", 413);
    /// The body is not `application/json` by its header.
    UnsupportedMediaType = ("unsupported_media_type", 415);
    /// The range begins behind the last byte.
    RangeNotSatisfiable = ("range_not_satisfiable", 416);
    /// The request names a host that this server does not answer for.
    HostNotAllowed = ("host_not_allowed", 421);
    /// This server does not hold the sandbox or its files, or holds none at all; ask another one of this installation.
    WrongServer = ("wrong_server", 421);
    /// The tenant has as many live sandboxes as its quota allows; kill or pause some.
    TooManySandboxes = ("too_many_sandboxes", 429);
    /// Too many invalid reply links; retry in a minute.
    TooManyGuesses = ("too_many_guesses", 429);
    /// A fault of ours; the operator's log has the cause.
    Internal = ("internal", 500);
    /// The store of large artifacts gives or takes no bytes; `details.fault` says why.
    StoreFailed = ("store_failed", 503);
    /// The database cannot be reached; try again.
    Unavailable = ("unavailable", 503);
}

/// One violation of a schema.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Violation {
    /// JSON Pointer to the offending value; empty for the whole body.
    pub instance_path: String,
    /// What is wrong with it.
    pub message: String,
}

/// The body of every error.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ErrorBody {
    /// For a person.
    pub error: String,
    /// For a program.
    pub code: ErrorCode,
    /// More, where there is more: a list of violations, a drift, a limit.
    pub details: Option<serde_json::Value>,
    /// Of a start that differs from the run that exists: each field, as `details` has it too.
    pub drift: Option<serde_json::Value>,
}

/// An error on its way to a caller.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    /// For a program.
    pub code: ErrorCode,
    /// For a person; never names a secret, a row or a statement.
    pub message: String,
    /// More, where there is more.
    pub details: Option<serde_json::Value>,
}

impl Refusal {
    /// A refusal without details.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), details: None }
    }

    /// The same with details.
    #[must_use]
    pub fn with(mut self, details: serde_json::Value) -> Self {
        self.details = Some(details);
        self
    }

    /// `not_found`: also the answer for another tenant's id.
    #[must_use]
    pub fn not_found(what: &str) -> Self {
        Self::new(ErrorCode::NotFound, format!("{what} not found"))
    }

    /// `internal`: a fault of ours, of which the caller learns nothing more.
    #[must_use]
    pub fn internal() -> Self {
        Self::new(ErrorCode::Internal, "internal error; the server's log has the cause")
    }

    /// A list of violations.
    #[must_use]
    pub fn violations(violations: &[Violation]) -> Self {
        let first = violations.first().map_or_else(String::new, |v| {
            let at = if v.instance_path.is_empty() { "body" } else { &v.instance_path };
            format!(": {at}: {}", v.message)
        });
        Self::new(ErrorCode::SchemaViolation, format!("the request does not fit its schema{first}"))
            .with(serde_json::json!(violations))
    }

    /// The body that the caller gets.
    #[must_use]
    pub fn body(self) -> ErrorBody {
        let drift = self.details.as_ref().and_then(|d| d.get("drift")).cloned();
        ErrorBody { error: self.message, code: self.code, details: self.details, drift }
    }
}

/// An error and its causes, outermost first, as one line for a log or a record. A cause that the words before it end with was
/// said by them.
#[must_use]
pub fn error_chain(error: &dyn std::error::Error) -> String {
    let mut words = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        let next = inner.to_string();
        if !words.ends_with(&next) {
            words = format!("{words}: {next}");
        }
        source = inner.source();
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chain_has_every_cause() {
        #[derive(Debug, thiserror::Error)]
        #[error("{0}")]
        struct Layer(&'static str, #[source] Option<Box<Layer>>);
        let of = |[a, b, c]: [&'static str; 3]| {
            Layer(a, Some(Box::new(Layer(b, Some(Box::new(Layer(c, None)))))))
        };
        assert_eq!(error_chain(&of(["a", "b", "c"])), "a: b: c");
        // Each says its own cause, too.
        assert_eq!(error_chain(&of(["a: b: c", "b: c", "c"])), "a: b: c");
    }

    #[test]
    fn the_text_of_a_code_is_its_serialized_form() {
        for code in ErrorCode::ALL {
            assert_eq!(serde_json::to_value(code).unwrap(), code.as_str());
            assert!((400..=503).contains(&code.status()));
        }
    }
}
