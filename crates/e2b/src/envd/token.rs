//! Whether a request has a sandbox's token.

use axum::http::HeaderMap;

use crate::envd::state::Envd;
use crate::headers::{TOKEN, carried};

/// Whether two secrets are the same, in a time that does not tell where they differ.
pub(crate) fn is_same(one: &str, other: &str) -> bool {
    let differ = one.bytes().zip(other.bytes()).fold(0, |sum, (a, b)| sum | (a ^ b));
    one.len() == other.len() && differ == 0
}

impl Envd {
    /// Whether a request may talk to envd.
    pub(crate) fn opens(&self, headers: &HeaderMap) -> bool {
        !self.guest.is_revoked()
            && carried(headers, TOKEN).is_some_and(|token| is_same(token, &self.guest.facts.token))
    }
}

#[cfg(test)]
mod tests {

    use super::*;

    #[test]
    fn secrets_are_compared_whole() {
        assert!(is_same("abc", "abc"));
        for other in ["", "ab", "abd", "abcd", "bbc"] {
            assert!(!is_same("abc", other), "{other}");
        }
    }
}
