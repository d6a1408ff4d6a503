//! Paths that mean to every server what they say. Pure.

use percent_encoding::percent_decode_str;

/// Bytes of a path with its query: what servers take.
const MAX_PATH_BYTES: usize = 8 * 1024;
/// How often something between us and the files may decode a path.
const MAX_DECODINGS: usize = 3;

/// The path without its query as servers come to read it, however often they decode it. `None`: some step
/// of it goes up, stays or is empty, so that what begins with a prefix may not lie below it.
pub(crate) fn plain(path: &str) -> Option<String> {
    if path.len() > MAX_PATH_BYTES || !path.starts_with('/') {
        return None;
    }
    let mut text = path.split(['?', '#']).next().unwrap_or(path).to_owned();
    for _ in 0..=MAX_DECODINGS {
        if !has_plain_steps(&text) {
            return None;
        }
        let decoded = percent_decode_str(&text).decode_utf8_lossy().into_owned();
        if decoded == text {
            return (!text.contains(|c: char| c.is_control())).then_some(text);
        }
        text = decoded;
    }
    None
}

fn has_plain_steps(text: &str) -> bool {
    let is_plain = |step: &str| {
        // What follows a semicolon are parameters of the step, to some servers.
        !matches!(step.split(';').next().unwrap_or(step), "." | "..")
    };
    !text.contains("//") && text.split(['/', '\\']).all(is_plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn h4_a_path_that_climbs_in_any_disguise_is_not_plain() {
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
        ] {
            assert!(plain(path).is_none(), "{path}");
        }
        assert!(plain(&format!("/{}", "a".repeat(MAX_PATH_BYTES))).is_none());
    }
}
