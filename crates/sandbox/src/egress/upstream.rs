//! A proxy that this host's own clients use.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use percent_encoding::percent_decode_str;
use url::{Host, Url};

/// A proxy that this host's own clients use. Its credentials are never printed.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Upstream {
    pub host: String,
    pub port: u16,
    authorization: Option<String>,
}

impl std::fmt::Debug for Upstream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Upstream({}:{})", self.host, self.port)
    }
}

impl Upstream {
    /// `http://user:password@host:port`, as clients write it; the scheme may be left out.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let whole = if text.contains("://") { text.to_owned() } else { format!("http://{text}") };
        let url = Url::parse(&whole).ok().filter(|url| url.scheme() == "http")?;
        let host = match url.host()? {
            Host::Ipv6(address) => address.to_string(),
            host => host.to_string(),
        };
        let decode = |text: &str| percent_decode_str(text).decode_utf8_lossy().into_owned();
        let authorization = (!url.username().is_empty()).then(|| {
            let pair =
                format!("{}:{}", decode(url.username()), decode(url.password().unwrap_or("")));
            format!("Basic {}", STANDARD.encode(pair))
        });
        Some(Self { host, port: url.port_or_known_default().unwrap_or(80), authorization })
    }

    /// What a plain request through it must carry.
    pub(crate) fn authorization(&self) -> Option<&str> {
        self.authorization.as_deref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proxy_is_read_as_clients_write_it_and_its_password_not_printed() {
        let upstream = Upstream::parse("http://us%65r:p%40ss@proxy.example:3128").unwrap();
        assert_eq!((upstream.host.as_str(), upstream.port), ("proxy.example", 3128));
        assert_eq!(upstream.authorization(), Some("Basic dXNlcjpwQHNz"));
        assert_eq!(format!("{upstream:?}"), "Upstream(proxy.example:3128)");
        assert_eq!(Upstream::parse("proxy.example:8080").unwrap().port, 8080);
        assert_eq!(Upstream::parse("socks5://proxy.example"), None);
        assert_eq!(Upstream::parse("https://proxy.example"), None);
    }
}
