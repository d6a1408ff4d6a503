//! What is decided about a request from its head alone, before route and key.
//!
//! A browser on this host (or anywhere that reaches this server) runs pages of strangers. Such a page can
//! send requests here, and by rebinding its own name to our address it can even read the answers. It
//! cannot choose `Host`, `Origin` or `Sec-Fetch-Site`, and it cannot send `application/json` to another
//! origin without asking first. So these four are looked at, for every request, with a key or without.

use std::net::{IpAddr, Ipv6Addr};

use axum::http::header::{CONTENT_TYPE, HOST, ORIGIN};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderName, Method, Uri};
use cofferdam_contracts::error::{ErrorCode, Refusal};

/// Pages that people reach from elsewhere, such as from a mail. Following one changes nothing.
const LINKS: &str = "/api/links/";
const SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
const MODE: HeaderName = HeaderName::from_static("sec-fetch-mode");
const DEST: HeaderName = HeaderName::from_static("sec-fetch-dest");

/// A name that this server answers for, besides its own addresses: lower case, without a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostName(String);

impl HostName {
    /// # Errors
    /// Text that is no name or address, or that has a scheme, port or path.
    pub fn parse(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text}: expected a name or address alone, such as ci.example");
        let address = text.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
        if let Ok(address) = address {
            return Ok(Self(address.to_string()));
        }
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
        if text.is_empty() || text.len() > 253 || !text.chars().all(plain) {
            return Err(wrong());
        }
        Ok(Self(text.to_ascii_lowercase()))
    }
}

impl HostName {
    /// Whether a request's host, without its port, is this name.
    #[must_use]
    pub fn is(&self, host: &str) -> bool {
        self.0.eq_ignore_ascii_case(host)
    }

    /// As a URL has it: an IPv6 address in brackets.
    pub(crate) fn in_url(&self) -> String {
        if self.0.contains(':') { format!("[{}]", self.0) } else { self.0.clone() }
    }
}

/// What is asked of a request's head.
#[derive(Debug)]
pub(crate) struct RequestGuard {
    allowed: Vec<HostName>,
}

impl RequestGuard {
    pub(crate) fn new(allowed: Vec<HostName>) -> Self {
        Self { allowed }
    }

    /// Whether a request may go on to its route. `arrived` is the address that its connection was made
    /// to; `None` on the local socket.
    pub(crate) fn admit(
        &self,
        arrived: Option<IpAddr>,
        method: &Method,
        uri: &Uri,
        headers: &HeaderMap,
    ) -> Result<(), Refusal> {
        let host = self.host(arrived, uri, headers)?;
        self.origin(&host, method, uri, headers)
    }

    /// The first label of the name that a request gives this server, where the rest of it is a name of this server.
    pub(crate) fn label(&self, arrived: Option<IpAddr>, headers: &HeaderMap) -> Option<String> {
        let host = authority(only(headers, &HOST)?)?;
        let (label, domain) = host.host().split_once('.')?;
        let is_ours = address(domain).is_none() && self.answers_for(arrived, domain);
        is_ours.then(|| label.to_owned())
    }

    fn host(
        &self,
        arrived: Option<IpAddr>,
        uri: &Uri,
        headers: &HeaderMap,
    ) -> Result<Authority, Refusal> {
        let misdirected = |message: String| Refusal::new(ErrorCode::HostNotAllowed, message);
        let Some(text) = only(headers, &HOST) else {
            return Err(misdirected("a request has exactly one Host header".into()));
        };
        let host = authority(text)
            .ok_or_else(|| misdirected("the Host header is not a host with a port".into()))?;
        for named in std::iter::once(&host).chain(uri.authority()) {
            if !self.answers_for(arrived, named.host()) {
                let name = named.host();
                return Err(misdirected(format!(
                    "this server does not answer for {name}: name it with --allow-host"
                )));
            }
        }
        Ok(host)
    }

    fn answers_for(&self, arrived: Option<IpAddr>, host: &str) -> bool {
        match address(host) {
            Some(ip) => {
                is_usual(ip)
                    || arrived.map(|a| a.to_canonical()) == Some(ip)
                    || self.lists(&ip.to_string())
            }
            None => host.eq_ignore_ascii_case("localhost") || self.lists(host),
        }
    }

    fn lists(&self, host: &str) -> bool {
        self.allowed.iter().any(|name| name.0.eq_ignore_ascii_case(host))
    }

    fn origin(
        &self,
        host: &Authority,
        method: &Method,
        uri: &Uri,
        headers: &HeaderMap,
    ) -> Result<(), Refusal> {
        let foreign = |who: &str| {
            Refusal::new(
                ErrorCode::ForeignOrigin,
                format!("a web page of {who} may not use this server"),
            )
        };
        let sites: Vec<&[u8]> = headers.get_all(&SITE).iter().map(|v| v.as_bytes()).collect();
        let is_own = sites == [b"same-origin".as_slice()];
        if !is_own && !sites.is_empty() && sites != [b"none".as_slice()] {
            return match follows_link(method, uri, headers) {
                true => Ok(()),
                false => Err(foreign("another site")),
            };
        }
        match headers.get_all(&ORIGIN).iter().count() {
            0 => return Ok(()),
            1 => {}
            _ => return Err(foreign("several origins")),
        }
        match only(headers, &ORIGIN) {
            // Policies on referrers hide the origin even from itself; then the browser's word on the site counts.
            Some("null") if is_own => Ok(()),
            Some(origin) if self.is_same(host, origin) => Ok(()),
            Some(origin) if origin.len() <= 300 => Err(foreign(origin)),
            _ => Err(foreign("another site")),
        }
    }

    /// Whether an origin is this server's own, as the request names it, or at a name on the list.
    fn is_same(&self, host: &Authority, origin: &str) -> bool {
        let Some((scheme, rest)) = origin.split_once("://") else { return false };
        let usual = match scheme {
            "http" => 80,
            "https" => 443,
            _ => return false,
        };
        let Some(origin) = authority(rest) else { return false };
        let port = |authority: &Authority| authority.port_u16().unwrap_or(usual);
        let same = origin.host().eq_ignore_ascii_case(host.host()) && port(&origin) == port(host);
        same || match address(origin.host()) {
            Some(ip) => self.lists(&ip.to_string()),
            None => self.lists(origin.host()),
        }
    }
}

/// Whether somebody follows a reply link from elsewhere: a navigation of the whole window to its page.
fn follows_link(method: &Method, uri: &Uri, headers: &HeaderMap) -> bool {
    *method == Method::GET
        && uri.path().starts_with(LINKS)
        && only(headers, &MODE) == Some("navigate")
        && only(headers, &DEST) == Some("document")
        && !headers.contains_key(ORIGIN)
}

/// Whether a body of this type may be read: JSON in UTF-8, and said so once.
#[must_use]
pub fn is_json(headers: &HeaderMap) -> bool {
    let Some(text) = only(headers, &CONTENT_TYPE) else { return false };
    let mut parts = text.split(';').map(str::trim);
    let essence = parts.next().unwrap_or_default();
    essence.eq_ignore_ascii_case("application/json")
        && parts.all(|part| match part.split_once('=') {
            Some((name, value)) => {
                name.eq_ignore_ascii_case("charset")
                    && value.trim_matches('"').eq_ignore_ascii_case("utf-8")
            }
            None => part.is_empty(),
        })
}

/// The text of a header that is given exactly once.
fn only<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Option<&'h str> {
    let mut values = headers.get_all(name).iter();
    let first = values.next()?.to_str().ok()?;
    values.next().is_none().then_some(first)
}

/// `host[:port]` and nothing else.
fn authority(text: &str) -> Option<Authority> {
    let parsed: Authority = text.parse().ok()?;
    let whole = !parsed.host().is_empty() && !text.contains('@');
    // A port that is no number parses as well, and is not there when asked for.
    let port = parsed.as_str().strip_prefix(parsed.host())?;
    (whole && (port.is_empty() || parsed.port_u16().is_some())).then_some(parsed)
}

/// The address that a host is, if it is one. Brackets are an IPv6 address's.
fn address(host: &str) -> Option<IpAddr> {
    let ip = match host.strip_prefix('[').and_then(|h| h.strip_suffix(']')) {
        Some(inner) => IpAddr::V6(inner.parse::<Ipv6Addr>().ok()?),
        None => host.parse().ok()?,
    };
    Some(ip.to_canonical())
}

/// The loopback addresses that everybody uses.
fn is_usual(ip: IpAddr) -> bool {
    ip == IpAddr::from([127, 0, 0, 1]) || ip == IpAddr::V6(Ipv6Addr::LOCALHOST)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: [u8; 4] = [10, 0, 0, 5];

    fn door() -> RequestGuard {
        RequestGuard::new(vec![HostName::parse("Approve.Example").unwrap()])
    }

    fn asked(method: &str, uri: &str, headers: &[(&str, &str)]) -> Option<ErrorCode> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(HeaderName::from_bytes(name.as_bytes()).unwrap(), value.parse().unwrap());
        }
        let method = Method::from_bytes(method.as_bytes()).unwrap();
        let uri = uri.parse().unwrap();
        door().admit(Some(HERE.into()), &method, &uri, &map).err().map(|refusal| refusal.code)
    }

    #[test]
    fn c2_a_host_is_loopback_the_address_of_the_connection_or_on_the_list() {
        for host in [
            "127.0.0.1",
            "127.0.0.1:7070",
            "localhost",
            "LocalHost:1",
            "[::1]:7070",
            "[::1]",
            "[::ffff:127.0.0.1]:1",
            "10.0.0.5:7070",
            "approve.example",
            "APPROVE.example:8443",
        ] {
            assert_eq!(asked("GET", "/healthz", &[("host", host)]), None, "{host}");
        }
        for host in [
            "",
            "evil.example",
            "127.0.0.1.evil.example",
            "localhost.",
            "localhost.evil.example",
            "10.0.0.6",
            "0.0.0.0",
            "127.0.0.2",
            "approve.example.evil.example",
            "a@127.0.0.1",
            "127.0.0.1:x",
            "127.0.0.1:70700",
            "::1",
            "127.1",
            "2130706433",
            "127.0.0.1 evil",
            "127.0.0.1:",
            "[::1",
            "evil.example:7070",
        ] {
            let code = asked("GET", "/healthz", &[("host", host)]);
            assert_eq!(code, Some(ErrorCode::HostNotAllowed), "{host}");
        }
        let none = asked("GET", "/healthz", &[]);
        assert_eq!(none, Some(ErrorCode::HostNotAllowed));
        let two = [("host", "127.0.0.1"), ("host", "127.0.0.1")];
        assert_eq!(asked("GET", "/healthz", &two), Some(ErrorCode::HostNotAllowed));
        let absolute = asked("GET", "http://evil.example/healthz", &[("host", "127.0.0.1")]);
        assert_eq!(absolute, Some(ErrorCode::HostNotAllowed));
    }

    #[test]
    fn a_label_is_found_below_each_name_of_the_server_and_nowhere_else() {
        let label = |host: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(HOST, host.parse().unwrap());
            door().label(Some(HERE.into()), &headers)
        };
        for good in ["localhost", "localhost:7070", "approve.example", "LOCALHOST"] {
            let found = label(&format!("3000-x.{good}"));
            assert_eq!(found.as_deref(), Some("3000-x"), "{good}");
        }
        for bad in [
            "3000-x.evil.example",
            "3000-x.x.localhost",
            "3000-x.10.0.0.5",
            "3000-x",
            "localhost",
            "approve.example",
            "127.0.0.1:7070",
        ] {
            assert_eq!(label(bad), None, "{bad}");
        }
    }

    #[test]
    fn c2_a_foreign_origin_or_site_is_refused_and_an_own_one_is_not() {
        let with = |more: &[(&'static str, &'static str)]| {
            let mut headers = vec![("host", "127.0.0.1:7070")];
            headers.extend(more);
            asked("POST", "/api/run", &headers)
        };
        for own in [
            &[][..],
            &[("origin", "http://127.0.0.1:7070")],
            &[("origin", "https://127.0.0.1:7070")],
            &[("origin", "https://approve.example")],
            &[("origin", "http://127.0.0.1:7070"), ("sec-fetch-site", "same-origin")],
            &[("origin", "null"), ("sec-fetch-site", "same-origin")],
            &[("sec-fetch-site", "none")],
        ] {
            assert_eq!(with(own), None, "{own:?}");
        }
        for other in [
            &[("origin", "https://evil.example")][..],
            &[("origin", "null")],
            &[("origin", "")],
            &[("origin", "file://")],
            &[("origin", "http://127.0.0.1:3000")],
            &[("origin", "http://127.0.0.1")],
            &[("origin", "http://localhost:7070")],
            &[("origin", "http://127.0.0.1:7070.evil.example")],
            &[("origin", "http://127.0.0.1:7070"), ("origin", "http://evil.example")],
            &[("origin", "http://127.0.0.1:7070"), ("sec-fetch-site", "cross-site")],
            &[("sec-fetch-site", "same-site")],
            &[("sec-fetch-site", "cross-site")],
            &[("sec-fetch-site", "anything")],
            &[("sec-fetch-site", "none"), ("sec-fetch-site", "cross-site")],
        ] {
            assert_eq!(with(other), Some(ErrorCode::ForeignOrigin), "{other:?}");
        }
    }

    #[test]
    fn c2_a_link_in_a_mail_opens_its_page_and_nothing_else_is_followed() {
        let click = |method: &str, path: &str, more: &[(&'static str, &'static str)]| {
            let mut headers = vec![
                ("host", "approve.example"),
                ("sec-fetch-site", "cross-site"),
                ("sec-fetch-mode", "navigate"),
                ("sec-fetch-dest", "document"),
            ];
            headers.extend(more);
            asked(method, path, &headers)
        };
        assert_eq!(click("GET", "/api/links/abc", &[]), None);
        let foreign = Some(ErrorCode::ForeignOrigin);
        assert_eq!(click("POST", "/api/links/abc", &[]), foreign);
        assert_eq!(click("GET", "/api/runs", &[]), foreign);
        assert_eq!(click("GET", "/api/links/abc", &[("origin", "https://evil.example")]), foreign);
        assert_eq!(click("GET", "/api/links/abc", &[("sec-fetch-dest", "iframe")]), foreign);
        let fetched = [
            ("host", "approve.example"),
            ("sec-fetch-site", "cross-site"),
            ("sec-fetch-mode", "no-cors"),
            ("sec-fetch-dest", "image"),
        ];
        assert_eq!(asked("GET", "/api/links/abc", &fetched), foreign);
    }

    #[test]
    fn c2_only_json_is_json() {
        let says = |values: &[&str]| {
            let mut map = HeaderMap::new();
            for value in values {
                map.append(CONTENT_TYPE, value.parse().unwrap());
            }
            is_json(&map)
        };
        for yes in [
            "application/json",
            "Application/JSON",
            "application/json;charset=utf-8",
            "application/json; charset=\"UTF-8\"",
            "application/json;",
        ] {
            assert!(says(&[yes]), "{yes}");
        }
        for no in [
            "",
            "text/plain",
            "text/plain; application/json",
            "application/json, text/plain",
            "application/jsonp",
            "application/x-www-form-urlencoded",
            "multipart/form-data",
            "application/json; charset=utf-16",
            "application/json; boundary=x",
        ] {
            assert!(!says(&[no]), "{no}");
        }
        assert!(!says(&[]) && !says(&["application/json", "text/plain"]));
    }

    #[test]
    fn a_name_of_the_list_is_a_name_alone() {
        for good in ["ci.example", "10.1.2.3", "[fd00::1]", "fd00::1", "a-b_c"] {
            assert!(HostName::parse(good).is_ok(), "{good}");
        }
        for bad in ["", "*", "*.example", "ci.example:80", "https://ci.example", "a/b", "a b"] {
            assert!(HostName::parse(bad).is_err(), "{bad}");
        }
    }
}
