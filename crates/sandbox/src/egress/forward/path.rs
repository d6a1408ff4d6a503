//! Paths that mean to every server what they say. Pure.

use percent_encoding::percent_decode_str;

/// Bytes of a path with its query: what servers take.
const MAX_PATH_BYTES: usize = 8 * 1024;
/// How often something between us and the files may decode a path.
const MAX_DECODINGS: usize = 3;

/// The path without its query as servers come to read it, however often they decode it. `None`: some server
/// would read another path than this one: a step goes up, stays, is empty or begins or ends with a blank, or
/// holds what is a slash, a parameter or no text to some.
pub(crate) fn plain(path: &str) -> Option<String> {
    if path.len() > MAX_PATH_BYTES || !path.starts_with('/') {
        return None;
    }
    let mut text = path.split(['?', '#']).next().unwrap_or(path).to_owned();
    for _ in 0..=MAX_DECODINGS {
        if !has_plain_steps(&text) {
            return None;
        }
        let decoded = percent_decode_str(&text).decode_utf8().ok()?.into_owned();
        if decoded == text {
            return Some(text);
        }
        text = decoded;
    }
    None
}

fn has_plain_steps(text: &str) -> bool {
    let is_plain = |step: &str| !matches!(step, "." | "..") && step.trim() == step;
    // What follows a semicolon are parameters of the step, to some servers.
    let is_odd = |c: char| c.is_control() || matches!(c, '\\' | ';');
    !text.contains("//") && !text.contains(is_odd) && text.split('/').all(is_plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn h4_s10_a_path_that_climbs_in_any_disguise_is_not_plain() {
        for path in
            ["/", "/simple/", "/simple/a-b/", "/@scope%2fname", "/x/-/x-1.0.tgz?a=../b", "/a/..b/"]
        {
            assert!(plain(path).is_some(), "{path}");
        }
        for path in [
            "simple",
            "/simple/../private",
            "/simple/..",
            "/simple/%2e%2e/private",
            "/simple/%2E./x",
            "/simple/..%2fprivate",
            "/simple/..%5cprivate",
            "/simple/..\\private",
            "/simple/%252e%252e/private",
            "/simple/..;a=b/private",
            "/simple/./x",
            "/simple//x",
            "/npm/%2f-/whoami",
            "/simple/%00",
            "/simple/a%0d%0ab",
            "/npm/%5c-/whoami",
            "/npm/-;a=b/whoami",
            "/npm/x%3b/-/whoami",
            "/npm/%20-/whoami",
            "/npm/%c0%ad/whoami",
        ] {
            assert!(plain(path).is_none(), "{path}");
        }
        assert!(plain(&format!("/{}", "a".repeat(MAX_PATH_BYTES))).is_none());
    }
}
