//! Paths that mean to every server what they say. Pure.

use percent_encoding::percent_decode_str;

/// Bytes of a path with its query: what servers take.
const MAX_PATH_BYTES: usize = 8 * 1024;
/// How often something between us and the files may decode a path.
const MAX_DECODINGS: usize = 3;

/// Whether no step of the path goes up or stays, however often it is decoded: what begins with a prefix
/// then lies below it.
pub(crate) fn is_plain(path: &str) -> bool {
    if path.len() > MAX_PATH_BYTES || !path.starts_with('/') {
        return false;
    }
    let mut text = path.split(['?', '#']).next().unwrap_or(path).to_owned();
    for _ in 0..=MAX_DECODINGS {
        let steps = text.split(['/', '\\']);
        if steps.map(|step| step.split(';').next().unwrap_or(step)).any(|s| s == "." || s == "..") {
            return false;
        }
        let decoded = percent_decode_str(&text).decode_utf8_lossy().into_owned();
        if decoded == text {
            return !text.contains(|c: char| c.is_control());
        }
        text = decoded;
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn h4_a_path_that_climbs_in_any_disguise_is_not_plain() {
        for path in
            ["/", "/simple/", "/simple/a-b/", "/@scope%2fname", "/x/-/x-1.0.tgz?a=../b", "/a/..b/"]
        {
            assert!(is_plain(path), "{path}");
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
            "/simple/%00",
            "/simple/a%0d%0ab",
        ] {
            assert!(!is_plain(path), "{path}");
        }
        assert!(!is_plain(&format!("/{}", "a".repeat(MAX_PATH_BYTES))));
    }
}
