//! Identifiers. Every id is its own type, parsed once at the edge; inside, a `RunId` can never be
//! passed where a `TaskKey` is meant.

use std::fmt;
use std::str::FromStr;

use schemars::json_schema;
use serde::{Deserialize, Serialize};

use crate::own_schema::own_schema;

/// Why a text is not the id it was offered as.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a {kind}: it must match {pattern}")]
pub struct IdError {
    /// The id's name in the glossary.
    pub kind: &'static str,
    /// The offending text, cut to 64 characters so that an error never echoes a huge input.
    pub text: String,
    /// What would have been accepted.
    pub pattern: &'static str,
}

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $kind:literal, $pattern:literal, $check:expr) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(String);

        own_schema!($name, |_| json_schema!({"type": "string", "pattern": $pattern}));

        impl $name {
            /// Parses the text, or says what would have been accepted.
            pub fn parse(text: &str) -> Result<Self, IdError> {
                let check: fn(&str) -> bool = $check;
                if check(text) {
                    Ok(Self(text.to_owned()))
                } else {
                    Err(IdError { kind: $kind, text: text.chars().take(64).collect(), pattern: $pattern })
                }
            }

            /// The id as text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl TryFrom<String> for $name {
            type Error = IdError;
            fn try_from(text: String) -> Result<Self, IdError> {
                Self::parse(&text)
            }
        }

        impl From<$name> for String {
            fn from(id: $name) -> String {
                id.0
            }
        }

        impl FromStr for $name {
            type Err = IdError;
            fn from_str(text: &str) -> Result<Self, IdError> {
                Self::parse(text)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }
    };
}

pub(crate) fn is_lower_hex(text: &str, len: usize) -> bool {
    text.len() == len && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

/// Lower-case letters and digits.
fn is_letters(text: &str, len: usize) -> bool {
    text.len() == len && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit())
}

fn is_word(text: &str, max: usize, extra: &[u8]) -> bool {
    let mut bytes = text.bytes();
    let first = bytes.next().is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    first
        && text.len() <= max
        && bytes.all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || extra.contains(&b))
}

id!(
    /// An intent: `it_<32 hex>`, or `ih_<64 hex>` for a recipe run, where the hex is the intent's hash.
    IntentId, "intent id", "^(it_[0-9a-f]{32}|ih_[0-9a-f]{64})$",
    |t| t.strip_prefix("it_").is_some_and(|h| is_lower_hex(h, 32))
        || t.strip_prefix("ih_").is_some_and(|h| is_lower_hex(h, 64))
);
id!(
    /// One run of an intent: `rn_<32 hex>`.
    RunId, "run id", "^rn_[0-9a-f]{32}$",
    |t| t.strip_prefix("rn_").is_some_and(|h| is_lower_hex(h, 32))
);
id!(
    /// The engine's workflow id. A parent's is its intent id (a retry or fork adds a suffix), a
    /// task's is its task key, an escalation's is `esc:<workflowID>:<gateKey>`.
    WorkflowId, "workflow id", "^[A-Za-z0-9][A-Za-z0-9_:.\\-]{0,255}$",
    |t| {
        t.len() <= 256
            && t.bytes().next().is_some_and(|b| b.is_ascii_alphanumeric())
            && t.bytes().all(|b| b.is_ascii_alphanumeric() || b"_:.-".contains(&b))
    }
);
id!(
    /// `sha256(canonical({intentId, runId, stepId, attempt, request}))`: one effect, one key.
    TaskKey, "task key", "^[0-9a-f]{64}$", |t| is_lower_hex(t, 64)
);
id!(
    /// A lower-case hexadecimal SHA-256 digest.
    Digest, "sha256 digest", "^[0-9a-f]{64}$", |t| is_lower_hex(t, 64)
);
id!(
    /// An object of a store: the writing process (16 digits) and a number of its own (16 digits).
    ObjectId, "object id", "^[0-9a-f]{32}$", |t| is_lower_hex(t, 32)
);
id!(
    /// A gate's key within its run.
    GateKey, "gate key", "^[a-z0-9][a-z0-9:_-]{0,127}$", |t| is_word(t, 128, b":_-")
);
id!(
    /// Name of a task group in its recipe: what `needs` and `${tasks.NAME..}` say.
    GroupName, "task id", "^[a-z][a-z0-9_-]{0,63}$",
    |t| t.starts_with(|c: char| c.is_ascii_lowercase()) && is_word(t, 64, b"_-")
);
id!(
    /// Name of a task's output.
    OutputName, "output name", "^[A-Za-z_][A-Za-z0-9_]{0,63}$",
    |t| {
        t.len() <= 64
            && t.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
            && t.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
    }
);
id!(
    /// One physical sandbox: `sb` and 20 hex digits, unique over all hosts.
    SandboxId, "sandbox id", "^sb[0-9a-f]{20}$",
    |t| t.strip_prefix("sb").is_some_and(|h| is_lower_hex(h, 20))
);
id!(
    /// A dispatch: eight letters and digits.
    DispatchId, "dispatch id", "^[a-z0-9]{8}$",
    |t| is_letters(t, 8)
);
id!(
    /// A snapshot: 20 letters and digits, never guessable.
    SnapshotId, "snapshot name", "^[a-z0-9]{20}$",
    |t| is_letters(t, 20)
);
id!(
    /// A long-lived sandbox as its tenant names it: 20 letters and digits, never guessable.
    LiveId, "sandbox name", "^[a-z0-9]{20}$",
    |t| is_letters(t, 20)
);
id!(
    /// A template that a tenant builds: 20 letters and digits.
    TemplateId, "template id", "^[a-z0-9]{20}$",
    |t| is_letters(t, 20)
);
id!(
    /// A build of a template, in the form of a UUID, which clients parse.
    BuildId, "build id", "^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$",
    |t| t.len() == 36 && t.bytes().enumerate().all(|(at, b)| match at {
        8 | 13 | 18 | 23 => b == b'-',
        _ => b.is_ascii_digit() || (b'a'..=b'f').contains(&b),
    })
);
id!(
    /// A template of long-lived sandboxes, as their creation names it.
    TemplateName, "template name", "^[a-z0-9][a-z0-9_-]{0,62}$", |t| is_word(t, 63, b"_-")
);
id!(
    /// A tenant; also the partition key of `sbxQ`.
    TenantId, "tenant id", "^[a-z0-9][a-z0-9_-]{0,62}$", |t| is_word(t, 63, b"_-")
);
id!(
    /// A secret's name within its tenant.
    SecretName, "secret name", "^[a-z0-9][a-z0-9_-]{0,62}$", |t| is_word(t, 63, b"_-")
);
id!(
    /// A group of keys that a gate may ask for.
    GroupId, "group", "^[a-z0-9][a-z0-9_-]{0,62}$", |t| is_word(t, 63, b"_-")
);
id!(
    /// A recipe's id.
    RecipeId, "recipe id", "^[a-z0-9][a-z0-9_.-]{0,62}$", |t| is_word(t, 63, b"_.-")
);
id!(
    /// A worker process among those that share a database: unique for every start.
    ExecutorId, "executor id", "^[a-z0-9][a-z0-9_.-]{0,127}$", |t| is_word(t, 128, b"_.-")
);
id!(
    /// A step of a run: `CompileST`, `ApplyPatchST`, `DecideST`, `ExecuteST`, or `ExecuteST:<task>`.
    StepId, "step id", "^[A-Za-z][A-Za-z0-9_:.\\-]{0,191}$",
    |t| {
        t.len() <= 192
            && t.bytes().next().is_some_and(|b| b.is_ascii_alphabetic())
            && t.bytes().all(|b| b.is_ascii_alphanumeric() || b"_:.-".contains(&b))
    }
);
id!(
    /// A model, as calls of its provider write it.
    ModelName, "model name", "^[A-Za-z0-9][A-Za-z0-9_.:/@+-]{0,127}$",
    |t| t.len() <= 128
        && t.bytes().next().is_some_and(|b| b.is_ascii_alphanumeric())
        && t.bytes().all(|b| b.is_ascii_alphanumeric() || b"_.:/@+-".contains(&b))
);
id!(
    /// A provider of models, within its tenant.
    ProviderName, "provider name", "^[a-z0-9][a-z0-9_-]{0,62}$", |t| is_word(t, 63, b"_-")
);
id!(
    /// An endpoint that is told of events: `wh_<32 hex>`.
    WebhookId, "webhook id", "^wh_[0-9a-f]{32}$",
    |t| t.strip_prefix("wh_").is_some_and(|h| is_lower_hex(h, 32))
);
id!(
    /// One event on its way to one webhook; also what the receiver tells duplicates by.
    DeliveryId, "delivery id", "^msg_[0-9a-f]{32}$",
    |t| t.strip_prefix("msg_").is_some_and(|h| is_lower_hex(h, 32))
);
id!(
    /// A schedule (`sc_<32 hex>`) or a hook (`hk_<32 hex>`).
    TriggerId, "trigger id", "^(sc|hk)_[0-9a-f]{32}$",
    |t| t.strip_prefix("sc_").or(t.strip_prefix("hk_")).is_some_and(|h| is_lower_hex(h, 32))
);
id!(
    /// A schedule's or a hook's name within its tenant.
    TriggerName, "trigger name", "^[a-z0-9][a-z0-9_.-]{0,62}$", |t| is_word(t, 63, b"_.-")
);
id!(
    /// Where deliveries to a hook go: its name, or its name, `-` and 16 digits of its id.
    HookAddress, "hook address", "^[a-z0-9][a-z0-9_.-]{0,79}$", |t| is_word(t, 80, b"_.-")
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_of_the_wrong_shape_is_refused_with_its_pattern() {
        let err = RunId::parse("rn_XYZ").unwrap_err();
        assert!(err.to_string().contains("^rn_[0-9a-f]{32}$"), "{err}");
        assert!(IntentId::parse(&format!("it_{}", "a".repeat(32))).is_ok());
        assert!(IntentId::parse(&format!("ih_{}", "a".repeat(64))).is_ok());
        assert!(IntentId::parse(&format!("ih_{}", "a".repeat(32))).is_err());
    }

    #[test]
    fn gate_keys_follow_the_contract() {
        assert!(GateKey::parse("approve-plan-1").is_ok());
        for bad in ["", "-a", "A", "a b", "a\u{e9}"] {
            assert!(GateKey::parse(bad).is_err(), "{bad}");
        }
        assert!(GateKey::parse(&"a".repeat(128)).is_ok());
        assert!(GateKey::parse(&"a".repeat(129)).is_err());
    }

    #[test]
    fn a_huge_input_is_not_echoed() {
        let err = TenantId::parse(&"!".repeat(10_000)).unwrap_err();
        assert_eq!(err.text.len(), 64);
    }
}
