//! A directory as one stream: a tar, into it and out of it.
//!
//! What a tar may do to a sandbox is bounded by the one who sends it, and no name in it leads out of its
//! directory: no absolute one, no `..`, none through a symbolic link, whoever put that link there.

use serde::{Deserialize, Serialize};

use crate::wire::{self, User};

/// A directory to pack.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pack {
    /// Absolute path inside the sandbox.
    pub path: String,
    /// Bytes of all files together.
    pub max_bytes: u64,
    /// Files, directories and links; of sockets, pipes and devices nothing is sent.
    pub max_entries: u64,
    /// For one who keeps it: owners and the directory itself are told too, and what cannot be sent is an
    /// error. Came with level 5.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub exact: bool,
    /// Nothing is sent: it is only said whether all could be. Came with level 6.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub look: bool,
}

/// A directory to unpack into.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Unpack {
    /// Absolute; it must exist.
    pub path: String,
    /// Bytes of all files together.
    pub max_bytes: u64,
    /// Headers in the tar, and directories that are made because a name needs them.
    pub max_entries: u64,
    /// Whose everything is, whatever the tar says; root's without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<User>,
}

impl Unpack {
    /// As the query of its route: the body is the tar.
    pub fn to_query(&self) -> Result<String, serde_json::Error> {
        Ok(format!("with={}", wire::encode_path(&serde_json::to_string(self)?)))
    }

    /// Parses what [`Unpack::to_query`] wrote; `None` for any other text.
    #[must_use]
    pub fn of_query(query: &str) -> Option<Self> {
        serde_json::from_str(&wire::decode_path(query.strip_prefix("with=")?)?).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_survives_its_query() {
        let path = "/a b&c=d\u{e9}".to_owned();
        let owner = Some(User { uid: 1, gid: 2 });
        let unpack = Unpack { path, max_bytes: u64::MAX, max_entries: 0, owner };
        assert_eq!(Unpack::of_query(&unpack.to_query().unwrap()), Some(unpack));
        for bad in ["", "with=", "with=%7B%7D", "path=/a"] {
            assert_eq!(Unpack::of_query(bad), None, "{bad}");
        }
    }
}
