//! Signatures of links to files.

use axum::http::Uri;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use cofferdam_ambient::clock;
use cofferdam_contracts::canonical::digest_bytes;

use crate::envd::token::is_same;
use crate::query;

/// What a request asks of files.
pub(crate) struct FileQuery {
    pub path: String,
    pub user: Option<String>,
}

pub(crate) fn asked(uri: &Uri) -> FileQuery {
    let query = uri.query().unwrap_or("");
    FileQuery {
        path: query::value(query, "path").unwrap_or_default(),
        user: query::value(query, "username"),
    }
}

/// The text that a token signs. Pure.
fn signature(path: &str, operation: &str, user: &str, token: &str, until: Option<&str>) -> String {
    let mut raw = format!("{path}:{operation}:{user}:{token}");
    if let Some(until) = until {
        raw.push(':');
        raw.push_str(until);
    }
    let hex = digest_bytes(raw.as_bytes());
    let digits = hex.as_str().as_bytes().chunks(2);
    let bytes: Vec<u8> = digits
        .filter_map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok())
        .collect();
    format!("v1_{}", STANDARD_NO_PAD.encode(bytes))
}

/// Whether the query's signature is this token's, and still good.
pub(crate) fn is_signed(uri: &Uri, operation: &str, token: &str) -> Result<bool, &'static str> {
    let query = uri.query().unwrap_or("");
    let Some(given) = query::value(query, "signature") else { return Ok(false) };
    // In a query `+` may be itself or a space; base64 has no space.
    let given = given.replace(' ', "+");
    let FileQuery { path, user } = asked(uri);
    let until = query::value(query, "signature_expiration");
    let wanted =
        signature(&path, operation, user.as_deref().unwrap_or(""), token, until.as_deref());
    if !is_same(&given, &wanted) {
        return Ok(false);
    }
    match until.map(|until| until.parse::<i64>()) {
        None => Ok(true),
        Some(Ok(until)) if until.saturating_mul(1_000) > clock::now_ms() => Ok(true),
        // Clients' tests read it word by word.
        Some(_) => Err("signature is already expired"),
    }
}

/// Whether the query has a signature, good or not.
pub(crate) fn is_claimed(uri: &Uri) -> bool {
    query::value(uri.query().unwrap_or(""), "signature").is_some()
}

#[cfg(test)]
mod tests {

    use super::*;

    #[test]
    fn a_signature_is_that_of_the_clients() {
        // Python: "v1_" + b64(sha256("/a:read::tok")).rstrip("=").
        let wanted = signature("/a", "read", "", "tok", None);
        assert_eq!(wanted, "v1_2/gNbgFPxFSqkheS/SD0NHlzA121E/nxkOtc/ovxeoI");
        assert_ne!(signature("/a", "write", "", "tok", None), wanted);
        assert_ne!(signature("/a", "read", "", "tok", Some("9")), wanted);
        let uri = |more: &str| -> Uri { format!("/files?path=%2Fa&{more}").parse().unwrap() };
        let given = wanted.replace('+', "%2B").replace('/', "%2F");
        assert_eq!(is_signed(&uri(&format!("signature={given}")), "read", "tok"), Ok(true));
        assert_eq!(is_signed(&uri(&format!("signature={given}")), "write", "tok"), Ok(false));
        assert_eq!(is_signed(&uri(&format!("signature={given}")), "read", "other"), Ok(false));
        assert_eq!(is_signed(&uri(""), "read", "tok"), Ok(false));
        let old =
            signature("/a", "read", "", "tok", Some("1")).replace('+', "%2B").replace('/', "%2F");
        let expired = uri(&format!("signature={old}&signature_expiration=1"));
        assert_eq!(is_signed(&expired, "read", "tok"), Err("signature is already expired"));
    }
}
