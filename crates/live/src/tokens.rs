//! What opens a sandbox from outside.

use cofferdam_ambient::random::secret_hex;
use serde::{Deserialize, Serialize};

/// Bytes of each token.
const TOKEN_BYTES: usize = 20;

/// What opens a sandbox from outside.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Tokens {
    /// Token that opens the sandbox's agent: 40 hex digits.
    pub envd: String,
    /// Its ports, where they ask for it.
    pub traffic: Option<String>,
    /// The key that they were made for, and end with; empty in what was kept before this was known.
    #[serde(default)]
    pub key_id: String,
}

impl Tokens {
    pub(crate) fn fresh(private: bool, key_id: &str) -> Self {
        let traffic = private.then(|| secret_hex(TOKEN_BYTES));
        Self { envd: secret_hex(TOKEN_BYTES), traffic, key_id: key_id.to_owned() }
    }
}

impl std::fmt::Debug for Tokens {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tokens")
    }
}
