//! A server: its listeners, and the APIs that answer there.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::api::{Api, Probe, Site};
use crate::listen::{Local, ServerState};
use crate::public::{self, PublicUrl};
use crate::request_guard::{HostName, RequestGuard};
use crate::tls::Tls;

/// How long a body may take to arrive: 1 MiB at the rate of a telephone line.
pub const BODY_PATIENCE: Duration = Duration::from_secs(30);
/// How long an answer may take to begin. A long poll waits 30 s; every proof over a large record is the longest.
pub const ANSWER_PATIENCE: Duration = Duration::from_secs(300);

/// Whether a key is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Auth {
    /// `Authorization: Bearer <key>` on everything but /healthz.
    Keys,
    /// A caller without a key is a submitter and approver of the default tenant. Loopback listeners only.
    None,
}

/// Where a server answers, and to whom.
#[derive(Debug)]
pub struct ServerConfig {
    /// Its address; port 0 takes a free one.
    pub addr: SocketAddr,
    /// Whether a key is asked for.
    pub auth: Auth,
    /// Names that requests may give it, besides its addresses.
    pub hosts: Vec<HostName>,
    /// The address by which people elsewhere reach it: what reply links begin with.
    pub public_url: Option<PublicUrl>,
    /// With a certificate, the address speaks TLS.
    pub tls: Option<Tls>,
    /// The socket for callers on this host.
    pub local: Option<Local>,
}

impl ServerConfig {
    /// An address that asks for keys, and nothing else.
    #[must_use]
    pub fn at(addr: SocketAddr) -> Self {
        Self { addr, auth: Auth::Keys, hosts: Vec::new(), public_url: None, tls: None, local: None }
    }
}

/// Why a server does not start.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The system refused the address or port, which another process may use.
    #[error("cannot listen on {addr}: {source}")]
    Listen {
        /// What was asked for.
        addr: SocketAddr,
        /// What the system said.
        source: std::io::Error,
    },
    /// `--no-auth` beyond this machine.
    #[error(
        "--no-auth is for loopback listeners only, and {0} is not loopback: leave it out and make keys with \
         `cofferdam key create`, or listen on 127.0.0.1"
    )]
    Open(SocketAddr),
}

/// Listeners whose address is known, before anybody answers there.
#[derive(Debug)]
pub struct Listeners {
    network: TcpListener,
    doors: ServerConfig,
    /// What reply links begin with.
    links: String,
}

/// Listeners, and the APIs that answer there.
#[derive(Debug)]
pub struct Server {
    listeners: Listeners,
    apis: Vec<Arc<dyn Api>>,
}

impl Listeners {
    /// Binds, so that the address is known before the first request.
    ///
    /// # Errors
    /// An address that cannot be had, or `--no-auth` beyond loopback.
    pub async fn bind(mut doors: ServerConfig) -> Result<Self, ServerError> {
        let addr = doors.addr;
        if doors.auth == Auth::None && !addr.ip().is_loopback() {
            return Err(ServerError::Open(addr));
        }
        let listen = |source| ServerError::Listen { addr, source };
        let network = TcpListener::bind(addr).await.map_err(listen)?;
        doors.addr = network.local_addr().map_err(listen)?;
        let said = doors.public_url.as_ref();
        let links = public::url(said, doors.addr, &doors.hosts, doors.tls.is_some());
        // Who follows a link names its host.
        doors.hosts.extend(doors.public_url.iter().map(|url| url.host().clone()));
        Ok(Self { network, doors, links })
    }

    /// What APIs know of the address.
    #[must_use]
    pub fn site(&self) -> Site {
        Site {
            no_auth: self.doors.auth == Auth::None,
            names: self.doors.hosts.clone(),
            public_url: self.doors.public_url.clone(),
            links: self.links.clone(),
            tls: self.doors.tls.is_some(),
        }
    }

    /// With the APIs that answer there, in the order in which they are asked.
    #[must_use]
    pub fn with(self, apis: Vec<Arc<dyn Api>>) -> Server {
        Server { listeners: self, apis }
    }
}

impl Server {
    /// Where it listens.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.listeners.doors.addr
    }

    /// Serves until `end` resolves, then lets open requests finish. `probe` makes what answers `GET /healthz`; it is called
    /// here, by the user that the process has become meanwhile.
    ///
    /// # Errors
    /// A local socket that cannot be listened on, or what keeps the probe from being made.
    pub async fn run(
        self,
        probe: impl FnOnce() -> std::io::Result<Box<dyn Probe>> + Send,
        end: impl Future<Output = ()> + Send + 'static,
    ) -> std::io::Result<()> {
        let Self { listeners: Listeners { network, doors, .. }, apis } = self;
        let ServerConfig { hosts, tls, local, .. } = doors;
        let tls = tls.map(|tls| tls.acceptor());
        let serving = ServerState::new(apis, RequestGuard::new(hosts), tls);
        let probe = probe()?;
        let (stop, stopped) = watch::channel(false);
        let served = serving.run(network, local, probe, stopped);
        let ended = async {
            end.await;
            let _ = stop.send(true);
            // Listeners ask this channel whether to stop, so it outlives them.
            std::future::pending::<()>().await;
        };
        tokio::select! {
            served = served => served,
            () = ended => Ok(()),
        }
    }
}
