//! Ids that the caller gives to the daemon: each derives from what the prompt is, so a second sender sends the same.

use std::fmt;

use cofferdam_contracts::canonical::{CanonicalError, digest};
use cofferdam_contracts::id::Digest;
use serde::Serialize;

/// Characters of an id after its prefix.
const LENGTH: usize = 26;

fn id(prefix: &str, key: &Digest) -> String {
    let tail: String = key.as_str().chars().take(LENGTH).collect();
    format!("{prefix}_{tail}")
}

/// A session of the daemon. Creating it again with the same id returns the same session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SessionId(String);

impl SessionId {
    /// The session of what this text names, such as a sandbox.
    ///
    /// # Errors
    /// Never for a text; the canonical form's signature says otherwise.
    pub fn derive(of: &str) -> Result<Self, CanonicalError> {
        Ok(Self(id("ses", &digest(&("opencode-session", of))?)))
    }

    /// The id as the daemon reads it.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The ids of one prompt. The caller stores `op_key` before it sends the prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ids {
    /// `sha256(canonical [sessionId, stepId, attempt])`: one prompt, one key.
    pub op_key: Digest,
    /// The session that the prompt belongs to.
    pub session: SessionId,
    message: String,
    part: String,
}

impl Ids {
    /// The ids of a step's attempt (from 1) in a session.
    ///
    /// # Errors
    /// Never for these types; the canonical form's signature says otherwise.
    pub fn derive(session: &SessionId, step: &str, attempt: u32) -> Result<Self, CanonicalError> {
        let op_key = digest(&(session, step, attempt))?;
        let (message, part) = (id("msg", &op_key), id("prt", &op_key));
        Ok(Self { op_key, session: session.clone(), message, part })
    }

    /// The prompt's message.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The message's only part.
    #[must_use]
    pub fn part(&self) -> &str {
        &self.part
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_derive_from_the_key_and_a_new_attempt_has_new_ones() {
        let session = SessionId::derive("sbx-1").unwrap();
        let first = Ids::derive(&session, "CompileST", 1).unwrap();
        assert_eq!(first, Ids::derive(&session, "CompileST", 1).unwrap());
        let again = Ids::derive(&session, "CompileST", 2).unwrap();
        assert_ne!(first.message(), again.message());
        assert_ne!(first.part(), again.part());
        let bytes = format!("[\"{session}\",\"CompileST\",1]");
        let key = cofferdam_contracts::canonical::digest_bytes(bytes.as_bytes());
        assert_eq!(first.op_key, key);
        assert!(first.message().starts_with("msg_") && first.message().len() == 30);
        assert!(session.as_str().starts_with("ses_") && session.as_str().len() == 30);
    }
}
