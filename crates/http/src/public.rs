//! The address by which people elsewhere reach this server: what reply links begin with.

use std::net::SocketAddr;

use axum::http::Uri;

use crate::request_guard::HostName;

/// Bytes of such an address: a link in a mail should stay a link.
const MAX_BYTES: usize = 512;

/// `http(s)://HOST[:PORT][/PATH]`, without a slash at its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublicUrl {
    url: String,
    host: HostName,
}

impl PublicUrl {
    /// # Errors
    /// Text that is no such address.
    pub fn parse(text: &str) -> Result<Self, String> {
        let wrong = |why: &str| {
            format!(
                "{why}: expected an address such as https://approve.example or https://ci.example/cofferdam"
            )
        };
        if text.len() > MAX_BYTES || !text.bytes().all(|b| b.is_ascii_graphic()) {
            return Err(wrong("it has spaces, control characters or more than 512 bytes"));
        }
        if text.contains(['"', '<', '>', '#', '?', '\\']) {
            return Err(wrong("it has a query, a fragment or quotes"));
        }
        let uri: Uri = text.parse().map_err(|_| wrong("it is not a URL"))?;
        if !matches!(uri.scheme_str(), Some("http" | "https")) {
            return Err(wrong("it begins with neither http:// nor https://"));
        }
        let authority = uri.authority().ok_or_else(|| wrong("it has no host"))?;
        if authority.as_str().contains('@') {
            return Err(wrong("it has a user or a password"));
        }
        let port = authority.as_str().strip_prefix(authority.host()).unwrap_or_default();
        if !port.is_empty() && authority.port_u16().is_none() {
            return Err(wrong("its port is not a number"));
        }
        let host = HostName::parse(authority.host())?;
        Ok(Self { url: text.trim_end_matches('/').to_owned(), host })
    }

    /// As it was said, without a slash at its end.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.url
    }

    /// Whom requests may name: its host.
    pub(crate) fn host(&self) -> &HostName {
        &self.host
    }
}

/// What links begin with: what was said, or where the server listens. An address that stands for all of this host's
/// is nobody's to follow; then the first name that the server answers for, and loopback at last.
pub(crate) fn url(
    said: Option<&PublicUrl>,
    addr: SocketAddr,
    hosts: &[HostName],
    tls: bool,
) -> String {
    if let Some(said) = said {
        return said.url.clone();
    }
    let scheme = if tls { "https" } else { "http" };
    let port = addr.port();
    match (addr.ip().is_unspecified(), hosts.first()) {
        (false, _) => format!("{scheme}://{addr}"),
        (true, Some(host)) => format!("{scheme}://{}:{port}", host.in_url()),
        (true, None) => format!("{scheme}://127.0.0.1:{port}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn e6_a_public_url_is_an_address_and_nothing_more() {
        for (said, means) in [
            ("https://approve.example", "https://approve.example"),
            ("https://approve.example/", "https://approve.example"),
            ("http://10.0.0.5:7070/coffer/dam/", "http://10.0.0.5:7070/coffer/dam"),
            ("https://[fd00::1]:8443", "https://[fd00::1]:8443"),
        ] {
            assert_eq!(PublicUrl::parse(said).unwrap().url, means);
        }
        for bad in [
            "",
            "approve.example",
            "ftp://approve.example",
            "https://",
            "https://u:p@approve.example",
            "https://approve.example?x=1",
            "https://approve.example/#x",
            "https://approve.example:x",
            "https://approve.example/ x",
            "https://appr\u{f6}ve.example",
            "https://a/\"onclick=",
            "javascript:alert(1)",
        ] {
            assert!(PublicUrl::parse(bad).is_err(), "{bad}");
        }
        assert!(PublicUrl::parse(&format!("https://a.example/{}", "x".repeat(MAX_BYTES))).is_err());
    }

    #[test]
    fn e6_without_one_links_say_where_the_server_listens() {
        let at = |text: &str| text.parse::<SocketAddr>().unwrap();
        let names = [HostName::parse("ci.example").unwrap()];
        assert_eq!(url(None, at("10.0.0.5:7070"), &names, false), "http://10.0.0.5:7070");
        assert_eq!(url(None, at("0.0.0.0:7070"), &names, true), "https://ci.example:7070");
        assert_eq!(url(None, at("[::]:7070"), &[], false), "http://127.0.0.1:7070");
        let said = PublicUrl::parse("https://approve.example").unwrap();
        assert_eq!(url(Some(&said), at("0.0.0.0:1"), &names, false), "https://approve.example");
    }
}
