//! Ids of git's objects.

use std::fmt;

use schemars::json_schema;
use serde::{Deserialize, Serialize};
use sha1::Sha1;
use sha2::{Digest as _, Sha256};

use crate::own_schema::own_schema;

/// Hash that a repository names its objects by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ObjectFormat {
    /// 40 hex digits.
    Sha1,
    /// 64 hex digits.
    Sha256,
}

impl ObjectFormat {
    /// As git's `--object-format` takes it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Sha1 => "sha1",
            Self::Sha256 => "sha256",
        }
    }

    /// The id that stands for no object.
    #[must_use]
    pub fn none(self) -> String {
        "0".repeat(self.digits())
    }

    const fn digits(self) -> usize {
        match self {
            Self::Sha1 => 40,
            Self::Sha256 => 64,
        }
    }
}

/// Full id of an object: 40 or 64 lower-case hex digits, not all of them 0.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct GitId(String);

impl GitId {
    /// Reads an id.
    ///
    /// # Errors
    /// A text that is not one.
    pub fn parse(text: &str) -> Result<Self, String> {
        let is_hex = text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        let is_none = text.bytes().all(|byte| byte == b'0');
        match is_hex && !is_none && matches!(text.len(), 40 | 64) {
            true => Ok(Self(text.to_owned())),
            false => Err("not a full object id: 40 or 64 lower-case hex digits".to_owned()),
        }
    }

    /// The id that git gives a file of these bytes.
    #[must_use]
    pub fn of_blob(format: ObjectFormat, bytes: &[u8]) -> Self {
        Self::of(format, "blob", bytes)
    }

    /// The id of an object of this kind.
    pub(super) fn of(format: ObjectFormat, kind: &str, bytes: &[u8]) -> Self {
        let head = format!("{kind} {}\0", bytes.len());
        Self(match format {
            ObjectFormat::Sha1 => {
                hex::encode(Sha1::new().chain_update(head).chain_update(bytes).finalize())
            }
            ObjectFormat::Sha256 => {
                hex::encode(Sha256::new().chain_update(head).chain_update(bytes).finalize())
            }
        })
    }

    /// The hash that it is of.
    #[must_use]
    pub fn format(&self) -> ObjectFormat {
        match self.0.len() {
            64 => ObjectFormat::Sha256,
            _ => ObjectFormat::Sha1,
        }
    }

    /// The id as 40 (SHA-1) or 64 (SHA-256) lower-case hex digits.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for GitId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for GitId {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        Self::parse(&text)
    }
}

impl From<GitId> for String {
    fn from(id: GitId) -> Self {
        id.0
    }
}

own_schema!(
    GitId,
    |_| json_schema!({"type": "string", "pattern": "^([0-9a-f]{40}|[0-9a-f]{64})$"})
);
