//! The host's end: names become connections here, outside the sandbox.
//!
//! ```text
//! operator's table -> that address       proxy of the client or the worker -> CONNECT there
//! otherwise the host's resolver, and never an address of the host itself
//! ```

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Duration;

use cofferdam_ambient::env;
use cofferdam_contracts::address::{AddressKind, kind_of};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpStream, lookup_host};

use super::policy::{Name, Rule};
use super::upstream::Upstream;

/// To a connection: what clients themselves wait.
const DIAL_MS: u64 = 15_000;
/// A proxy's answer to CONNECT.
const MAX_ANSWER_BYTES: usize = 8 * 1024;

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DialError {
    /// The name leads where no sandbox may go.
    #[error("it leads to {0}, which sandboxes must not reach")]
    Forbidden(IpAddr),
    #[error("it cannot be resolved: {0}")]
    Resolve(io::Error),
    #[error("it cannot be reached: {0}")]
    Connect(io::Error),
    #[error("the proxy that this host uses did not connect: {0}")]
    Proxy(String),
    #[error("it did not answer within {DIAL_MS} ms")]
    Late,
}

/// Where connections go.
#[derive(Debug, Clone, Default)]
pub(crate) struct Dialer {
    hosts: BTreeMap<Name, SocketAddr>,
    https: Option<Upstream>,
    http: Option<Upstream>,
    direct: Vec<String>,
}

/// A connection, and whether a proxy at its other end wants to be told the whole address.
pub(crate) struct UpstreamConnection {
    pub stream: TcpStream,
    pub proxy: Option<Upstream>,
}

impl Dialer {
    /// The worker's environment and the operator's table. `Err` names the variable that is set to
    /// something this host cannot dial through: going around a proxy would be worse.
    pub(crate) fn new(hosts: &BTreeMap<String, SocketAddr>) -> Result<Self, String> {
        let upstream = |upper: &str, lower: &str| {
            let set = env::var(lower).or_else(|| env::var(upper)).filter(|text| !text.is_empty());
            set.map(|text| {
                Upstream::parse(&text).ok_or_else(|| format!("{upper} is not an http:// proxy"))
            })
            .transpose()
        };
        let direct = env::var("no_proxy").or_else(|| env::var("NO_PROXY")).unwrap_or_default();
        let hosts = hosts.iter().map(|(name, address)| {
            let name = Name::parse(name).ok_or_else(|| format!("{name:?} is not a domain name"))?;
            Ok((name, *address))
        });
        Ok(Self {
            hosts: hosts.collect::<Result<_, String>>()?,
            https: upstream("HTTPS_PROXY", "https_proxy")?,
            http: upstream("HTTP_PROXY", "http_proxy")?,
            direct: direct.split(',').map(|entry| entry.trim().to_ascii_lowercase()).collect(),
        })
    }

    fn is_direct(&self, name: &Name) -> bool {
        self.direct.iter().any(|entry| {
            let entry = entry.strip_prefix("*.").unwrap_or(entry);
            let entry = entry.strip_prefix('.').unwrap_or(entry);
            entry == "*"
                || name.as_str() == entry
                || (!entry.is_empty()
                    && name.as_str().strip_suffix(entry).is_some_and(|head| head.ends_with('.')))
        })
    }

    fn upstream<'a>(
        &'a self,
        name: &Name,
        rule: &'a Rule,
        usual: Option<&'a Upstream>,
    ) -> Option<&'a Upstream> {
        rule.via.as_ref().or_else(|| usual.filter(|_| !self.is_direct(name)))
    }

    /// A stream to the name itself, for TLS.
    pub(crate) async fn tunnel(
        &self,
        name: &Name,
        port: u16,
        rule: &Rule,
    ) -> Result<TcpStream, DialError> {
        within(async {
            if let Some(address) = self.hosts.get(name) {
                return connect(*address).await;
            }
            match self.upstream(name, rule, self.https.as_ref()) {
                Some(upstream) => ask(upstream, name, port).await,
                None => direct(name, port, rule).await,
            }
        })
        .await
    }

    /// A stream for one plain request, to the name or to a proxy that forwards it.
    pub(crate) async fn plain(
        &self,
        name: &Name,
        port: u16,
        rule: &Rule,
    ) -> Result<UpstreamConnection, DialError> {
        within(async {
            if let Some(address) = self.hosts.get(name) {
                return Ok(UpstreamConnection { stream: connect(*address).await?, proxy: None });
            }
            match self.upstream(name, rule, self.http.as_ref()) {
                Some(upstream) => {
                    let stream = reach(upstream).await?;
                    Ok(UpstreamConnection { stream, proxy: Some(upstream.clone()) })
                }
                None => {
                    Ok(UpstreamConnection { stream: direct(name, port, rule).await?, proxy: None })
                }
            }
        })
        .await
    }
}

async fn within<T>(dial: impl Future<Output = Result<T, DialError>>) -> Result<T, DialError> {
    let limit = Duration::from_millis(DIAL_MS);
    tokio::time::timeout(limit, dial).await.unwrap_or(Err(DialError::Late))
}

async fn connect(address: SocketAddr) -> Result<TcpStream, DialError> {
    let stream = TcpStream::connect(address).await.map_err(DialError::Connect)?;
    stream.set_nodelay(true).map_err(DialError::Connect)?;
    Ok(stream)
}

/// Every address is checked and only a checked one is dialed: resolving twice could give two.
async fn direct(name: &Name, port: u16, rule: &Rule) -> Result<TcpStream, DialError> {
    let found = lookup_host((name.as_str(), port)).await.map_err(DialError::Resolve)?;
    let addresses: Vec<SocketAddr> = found.collect();
    if let Some(bad) = addresses.iter().find(|address| is_forbidden(address.ip(), rule.trusted)) {
        return Err(DialError::Forbidden(bad.ip()));
    }
    let mut last = DialError::Resolve(io::ErrorKind::NotFound.into());
    for address in addresses {
        match connect(address).await {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

async fn reach(upstream: &Upstream) -> Result<TcpStream, DialError> {
    let target = (upstream.host.as_str(), upstream.port);
    let stream =
        TcpStream::connect(target).await.map_err(|error| DialError::Proxy(error.to_string()))?;
    stream.set_nodelay(true).map_err(DialError::Connect)?;
    Ok(stream)
}

async fn ask(upstream: &Upstream, name: &Name, port: u16) -> Result<TcpStream, DialError> {
    let fault = |error: io::Error| DialError::Proxy(error.to_string());
    let mut stream = reach(upstream).await?;
    let mut request = format!("CONNECT {name}:{port} HTTP/1.1\r\nHost: {name}:{port}\r\n");
    if let Some(authorization) = upstream.authorization() {
        request.push_str(&format!("Proxy-Authorization: {authorization}\r\n"));
    }
    request.push_str("\r\n");
    stream.write_all(request.as_bytes()).await.map_err(fault)?;
    let mut answer = Vec::new();
    // Byte by byte: what follows the answer belongs to the tunnel.
    while !answer.ends_with(b"\r\n\r\n") {
        if answer.len() >= MAX_ANSWER_BYTES {
            return Err(DialError::Proxy("its answer has no end".into()));
        }
        answer.push(stream.read_u8().await.map_err(fault)?);
    }
    let line = String::from_utf8_lossy(answer.split(|b| *b == b'\r').next().unwrap_or_default())
        .into_owned();
    if line.split(' ').nth(1) == Some("200") {
        return Ok(stream);
    }
    Err(DialError::Proxy(line))
}

/// Whether a listed name may not lead there. Private ranges are allowed: an organisation's own servers
/// lie there, and only names that somebody consented to lead to them. This host is not, except for what
/// its own clients are configured to use.
pub(super) fn is_forbidden(ip: IpAddr, is_trusted: bool) -> bool {
    kind_of(ip) > AddressKind::Private || (!is_trusted && is_own(ip))
}

/// Whether it is an address of this host: only such a one can be bound.
fn is_own(ip: IpAddr) -> bool {
    UdpSocket::bind((ip, 0)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn l1_metadata_loopback_and_their_disguises_are_reached_by_no_name() {
        for text in [
            "127.0.0.1",
            "169.254.169.254",
            "168.63.129.16",
            "100.100.100.200",
            "192.0.0.1",
            "198.18.0.1",
            "0.0.0.0",
            "224.0.0.1",
            "255.255.255.255",
            "::1",
            "::",
            "fe80::1",
            "ff02::1",
            "::ffff:127.0.0.1",
            "::ffff:169.254.169.254",
            "::7f00:1",
            "64:ff9b::a9fe:a9fe",
            "2002:a9fe:a9fe::1",
            "2001::1",
            "fd00:ec2::254",
        ] {
            for is_trusted in [false, true] {
                assert!(is_forbidden(text.parse().unwrap(), is_trusted), "{text}");
            }
        }
        for text in ["10.1.2.3", "192.0.2.1", "203.0.113.7", "100.64.0.1", "2001:db8::1", "1.1.1.1"]
        {
            assert!(!is_forbidden(text.parse().unwrap(), false), "{text}");
        }
        assert!(is_own("127.0.0.1".parse().unwrap()) && !is_own("192.0.2.1".parse().unwrap()));
    }

    #[test]
    fn names_that_go_direct_are_matched_at_a_dot() {
        let direct = ["b.example", ".c.example", "*.d.example"].map(str::to_owned).to_vec();
        let dialer = Dialer { direct, ..Dialer::default() };
        let is = |text: &str| dialer.is_direct(&Name::parse(text).unwrap());
        assert!(is("b.example") && is("x.b.example") && is("x.c.example") && is("x.d.example"));
        assert!(!is("ab.example") && !is("a.example"));
    }
}
