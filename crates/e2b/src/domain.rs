//! The domain below which the sandboxes of a server have names.

use axum::http::{HeaderMap, header};
use cofferdam_http::HostName;

/// Where sandboxes have names: a browser finds everything below `localhost` on this machine, and nothing below an address.
/// Clients with E2B_DOMAIN call `api.DOMAIN`, and their sandboxes lie below DOMAIN, where this server answers for that.
pub(crate) fn domain(headers: &HeaderMap, names: &[HostName]) -> String {
    let host = headers.get(header::HOST).and_then(|value| value.to_str().ok()).unwrap_or("");
    let (name, port) = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) => (name, Some(port)),
        _ => (host, None),
    };
    let is_address = name.starts_with('[') || name.parse::<std::net::IpAddr>().is_ok();
    let below = name.get(..4).filter(|label| label.eq_ignore_ascii_case("api."));
    let below = below.and_then(|label| name.get(label.len()..));
    let name = match below.filter(|below| names.iter().any(|one| one.is(below))) {
        Some(below) => below,
        None if is_address || name.is_empty() => "localhost",
        None => name,
    };
    port.map_or_else(|| name.to_owned(), |port| format!("{name}:{port}"))
}

#[cfg(test)]
mod tests {

    use super::*;

    #[test]
    fn sandboxes_have_names_below_localhost_where_the_server_has_only_an_address() {
        let of = |host: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::HOST, host.parse().unwrap());
            domain(&headers, &[HostName::parse("own.example").unwrap()])
        };
        assert_eq!(of("127.0.0.1:7070"), "localhost:7070");
        assert_eq!(of("[::1]:7070"), "localhost:7070");
        assert_eq!(of("localhost:1"), "localhost:1");
        assert_eq!(of("ci.example"), "ci.example");
        for (host, domain) in [
            ("api.own.example", "own.example"),
            ("API.Own.example:8443", "Own.example:8443"),
            ("api.other.example", "api.other.example"),
        ] {
            assert_eq!(of(host), domain);
        }
    }
}
