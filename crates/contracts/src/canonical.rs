//! The canonical encoding and its hash.
//!
//! `canonical(x)` is RFC 8785 (JSON Canonicalization Scheme): members sorted by the UTF-16 code
//! units of their names, no white space, the shortest ECMAScript form of each number, and only the
//! escapes that JSON demands. `digest(x)` is the lower-case hexadecimal SHA-256 of those bytes. The
//! published vectors that hold us to it are in `vectors/jcs`, beside this crate.

use serde::Serialize;
use sha2::{Digest as _, Sha256};

use crate::id::Digest;

/// Why a value has no canonical form: a NaN, an infinity, or a map with keys that are not text.
#[derive(Debug, thiserror::Error)]
#[error("the value has no canonical JSON form")]
pub struct CanonicalError(#[from] serde_json::Error);

/// The RFC 8785 bytes of a value.
pub fn canonical<T: Serialize>(value: &T) -> Result<Vec<u8>, CanonicalError> {
    Ok(serde_json_canonicalizer::to_vec(value)?)
}

/// SHA-256 over the canonical bytes.
pub fn digest<T: Serialize>(value: &T) -> Result<Digest, CanonicalError> {
    Ok(digest_bytes(&canonical(value)?))
}

/// SHA-256 over raw bytes.
#[must_use]
pub fn digest_bytes(bytes: &[u8]) -> Digest {
    digest_of(Sha256::digest(bytes).as_slice())
}

/// A digest from its 32 raw bytes, as a streaming hasher yields them.
#[must_use]
pub fn digest_of(raw: &[u8]) -> Digest {
    // 32 bytes always encode to 64 lower-case hex digits, so this parse cannot fail; if a caller
    // ever passed another length the zero digest would match no content at all.
    Digest::parse(&hex::encode(raw)).unwrap_or_else(|_| zero())
}

fn zero() -> Digest {
    serde_json::from_value(serde_json::Value::String("0".repeat(64))).unwrap_or_else(|_| zero())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn members_are_sorted_and_numbers_are_shortest() {
        let bytes =
            canonical(&json!({"b": 1.0, "a": [1e30, 4.50, 2e-3], "\u{20ac}": "\n"})).unwrap();
        assert_eq!(
            String::from_utf8(bytes).unwrap(),
            "{\"a\":[1e+30,4.5,0.002],\"b\":1,\"\u{20ac}\":\"\\n\"}"
        );
    }

    #[test]
    fn the_digest_of_nothing_is_the_published_one() {
        assert_eq!(
            digest_bytes(b"").as_str(),
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
        );
    }
}
