//! Where the proxy is met inside a sandbox.

use std::net::Ipv4Addr;

/// Where everything listens. Not 127.0.0.1, whose ports belong to the task's own servers.
pub(crate) const ADDRESS: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 53);
/// The proxy that clients are told of.
pub(crate) const PROXY_PORT: u16 = 3128;
pub(crate) const DNS_PORT: u16 = 53;
/// What transparent clients reach after they asked for a name.
pub(crate) const TLS_PORT: u16 = 443;
pub(crate) const HTTP_PORT: u16 = 80;

/// Where a sandbox calls models.
pub(crate) const MODEL_PORT: u16 = 3129;

/// The ways in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Door {
    Proxy,
    Tls,
    Http,
    Dns,
    Model,
}
