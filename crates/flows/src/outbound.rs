//! Where webhooks may lead: a URL that a tenant wrote must not reach what only this host can.
//!
//! Every address that a name resolves to is checked against the table that the egress proxy has too
//! (`contracts::address`), and the connection goes to a checked one: the resolver below is the client's
//! only one. Redirects are not followed, proxies of the environment not
//! used.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use cofferdam_contracts::address::{AddressKind, kind_of};
use cofferdam_contracts::error::{ErrorCode, Refusal};
use reqwest::Url;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::redirect::Policy;

/// From the first packet to the whole answer; receivers are told to answer at once and work later.
pub(crate) const ATTEMPT_LIMIT: Duration = Duration::from_secs(10);

/// Which addresses an operator lets webhooks reach.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Reach {
    /// Only addresses that the whole internet may route; the default.
    #[default]
    Public,
    /// Also this host's own and those of its networks; metadata services and the like never.
    Private,
}

impl Reach {
    fn allows(self, address: IpAddr) -> bool {
        kind_of(address)
            <= match self {
                Self::Public => AddressKind::Public,
                Self::Private => AddressKind::Loopback,
            }
    }
}

/// An address that webhooks do not reach.
#[derive(Debug, thiserror::Error)]
#[error("the address is not one that webhooks may reach")]
pub(crate) struct PrivateAddress;

/// Reads a webhook's URL, or says what is wrong with it.
pub(crate) fn parse(text: &str, reach: Reach) -> Result<Url, Refusal> {
    let refuse =
        |why: &str| Err(Refusal::new(ErrorCode::PolicyViolation, format!("the url {why}")));
    if text.chars().any(|c| c.is_control() || c.is_whitespace()) {
        return refuse("holds spaces or control characters");
    }
    let Ok(url) = Url::parse(text) else { return refuse("cannot be read") };
    if !matches!(url.scheme(), "http" | "https") {
        return refuse("is neither http nor https");
    }
    if !url.username().is_empty() || url.password().is_some() {
        return refuse("carries a user or a password");
    }
    if url.fragment().is_some() {
        return refuse("has a fragment, which is never sent");
    }
    if url.as_str().len() > 2_048 {
        return refuse("is longer than 2048 bytes");
    }
    match url.host_str() {
        None | Some("") => refuse("names no host"),
        Some(host) if !may_reach(host, reach) => match reach {
            Reach::Public => refuse(
                "leads to a private address: an operator may allow that with --webhook-private",
            ),
            Reach::Private => refuse("leads to an address that nothing of this host may reach"),
        },
        Some(_) => Ok(url),
    }
}

/// What can be said before the name is resolved. The URL's parser has written every form of an
/// address (`127.1`, `0x7f.1`) as the address that it is.
pub(crate) fn may_reach(host: &str, reach: Reach) -> bool {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    match bare.parse::<IpAddr>() {
        Ok(address) => reach.allows(address),
        Err(_) => {
            let name = bare.trim_end_matches('.').to_ascii_lowercase();
            reach == Reach::Private || (name != "localhost" && !name.ends_with(".localhost"))
        }
    }
}

/// Resolves, and refuses a name of which any address is not allowed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PublicResolver(pub Reach);

impl Resolve for PublicResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let reach = self.0;
        Box::pin(async move {
            let found: Vec<SocketAddr> =
                tokio::net::lookup_host((name.as_str(), 0)).await?.collect();
            if found.iter().any(|address| !reach.allows(address.ip())) {
                return Err(PrivateAddress.into());
            }
            let addresses: Addrs = Box::new(found.into_iter());
            Ok(addresses)
        })
    }
}

/// The one client of webhooks.
pub(crate) fn client(reach: Reach) -> reqwest::Result<reqwest::Client> {
    // A second call changes nothing: one provider is enough for all of the process.
    let _ = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::builder()
        .no_proxy()
        .redirect(Policy::none())
        .dns_resolver(PublicResolver(reach))
        .timeout(ATTEMPT_LIMIT)
        // Receivers are many and events rare: no connection is kept for the next one.
        .pool_max_idle_per_host(0)
        .user_agent(concat!("cofferdam/", env!("CARGO_PKG_VERSION")))
        .build()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_addresses_and_their_disguises_are_refused_unless_allowed() {
        for url in [
            "http://127.0.0.1/",
            "http://127.1/",
            "http://0x7f.1/",
            "http://2130706433/",
            "http://[::1]/",
            "http://[::ffff:127.0.0.1]/",
            "http://10.0.0.1/",
            "http://192.168.1.1/",
            "http://172.16.0.1/",
            "http://100.64.0.1/",
            "http://203.0.113.7/",
            "http://[fd00::1]/",
            "http://[64:ff9b::7f00:1]/",
            "http://localhost/",
            "http://LOCALHOST./",
            "http://a.localhost/",
        ] {
            let said = parse(url, Reach::Public).unwrap_err();
            assert!(said.message.contains("private address"), "{url}: {said}");
            assert!(parse(url, Reach::Private).is_ok(), "{url}");
        }
        for url in
            ["https://example.com/x?y=1", "http://93.184.216.34/", "http://[2606:4700::1]:8443/"]
        {
            assert!(parse(url, Reach::Public).is_ok(), "{url}");
        }
    }

    #[test]
    fn l1_metadata_services_and_reserved_ranges_are_refused_to_everybody() {
        for url in [
            "http://169.254.169.254/latest",
            "http://168.63.129.16/",
            "http://100.100.100.200/",
            "http://[fd00:ec2::254]/",
            "http://0.0.0.0/",
            "http://255.255.255.255/",
            "http://224.0.0.1/",
            "http://[fe80::1]/",
            "http://[2001::1]/",
            "http://[2002:7f00:1::]/",
            "http://[64:ff9b::a9fe:a9fe]/",
        ] {
            for reach in [Reach::Public, Reach::Private] {
                assert!(parse(url, reach).is_err(), "{url} {reach:?}");
            }
        }
    }

    #[test]
    fn only_plain_http_urls_are_read() {
        for url in [
            "",
            "x",
            "ftp://example.com/",
            "file:///etc/passwd",
            "https://user@example.com/",
            "https://:pw@example.com/",
            "https://example.com/#a",
            "https://",
            "https:// example.com",
            "https://example.com/\u{0}",
            "javascript:alert(1)",
            "//example.com",
            "unix:/run/x",
        ] {
            for reach in [Reach::Public, Reach::Private] {
                assert_eq!(
                    parse(url, reach).unwrap_err().code,
                    ErrorCode::PolicyViolation,
                    "{url}"
                );
            }
        }
    }

    #[tokio::test]
    async fn a_name_that_resolves_to_this_host_is_not_dialed() {
        let name: Name = "localhost".parse().unwrap();
        assert!(PublicResolver(Reach::Public).resolve(name).await.is_err());
        let name: Name = "localhost".parse().unwrap();
        assert!(PublicResolver(Reach::Private).resolve(name).await.is_ok());
    }
}
