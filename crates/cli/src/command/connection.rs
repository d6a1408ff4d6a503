//! A command's way to the API: a server that runs, or a node in this process for its duration.

use std::path::Path;
use std::time::Duration;

use cofferdam_ambient::clock::{self, Stopwatch};
use cofferdam_ambient::env;
use cofferdam_http::{PublicUrl, ServerConfig};

use super::client::{Client, ServerFault};
use super::exit::Misuse;
use super::locations::Locations;
use super::node::{Node, Parts};
use super::worker::WorkerArgs;
use super::{database, local, output, state};

/// Loopback, any free port.
const ANY_PORT: std::net::SocketAddr =
    std::net::SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);

/// As `up --public-url` reads it: links that are made here outlive this process.
const PUBLIC_URL: &str = "COFFERDAM_PUBLIC_URL";

/// A server announces itself just after it listens, and takes that back just before it ends.
const TURN: Duration = Duration::from_secs(2);
/// Between two looks at it.
const LOOK: Duration = Duration::from_millis(50);

/// An API to talk to.
#[derive(Debug)]
pub(crate) struct Connection {
    pub client: Client,
    node: Option<Node>,
}

impl Connection {
    /// For commands that read or steer: whatever is queued waits for a worker elsewhere.
    pub(crate) async fn reading(at: &Locations) -> anyhow::Result<Self> {
        Self::open(at, None).await
    }

    /// For commands that want something executed.
    pub(crate) async fn executing(at: &Locations) -> anyhow::Result<Self> {
        Self::open(at, Some(&WorkerArgs::default())).await
    }

    async fn open(at: &Locations, worker: Option<&WorkerArgs>) -> anyhow::Result<Self> {
        if let Some(url) = &at.server {
            check_url(url)?;
            let why = "--server requires a key; pass COFFERDAM_KEY or --key-file";
            let key = at.key()?.ok_or_else(|| Misuse(why.into()))?;
            if let Some(warning) = in_clear(url) {
                output::note(&warning);
            }
            return Ok(Self { client: Client::new(url, &key)?, node: None });
        }
        let dir = state::dir(at)?;
        let given = at.key()?;
        if let Some(client) = running(&dir, given.as_deref()).await? {
            database::agrees(at, &dir).await?;
            return Ok(Self { client, node: None });
        }
        let public_url = env::var(PUBLIC_URL).filter(|url| !url.is_empty());
        let public_url =
            public_url.map(|url| PublicUrl::parse(&url).map_err(Misuse)).transpose()?;
        let listen = Some(ServerConfig { public_url, ..ServerConfig::at(ANY_PORT) });
        let allow_dirs = worker.map_or(&[][..], |worker| worker.allow_dirs.as_slice());
        let parts = Parts { worker, listen, allow_dirs, webhook_private: false };
        let mut node = Node::start(at, &dir, parts).await?;
        node.serve(None)?;
        let url = node.url().unwrap_or_default().to_owned();
        let key = given.unwrap_or_else(|| node.key.clone());
        Ok(Self { client: Client::new(&url, &key)?, node: Some(node) })
    }

    /// Whether this process is the server.
    pub(crate) fn is_local(&self) -> bool {
        self.node.is_some()
    }

    /// Says so, where nothing runs that would execute what was just asked for.
    pub(crate) async fn note_if_idle(&self) {
        if self.client.workers().await == Some(0) {
            output::note(
                "no worker runs, so nothing executes it yet: start `cofferdam up` (or `cofferdam worker`)",
            );
        }
    }

    /// Ends what this process started.
    pub(crate) async fn close(self) -> anyhow::Result<()> {
        match self.node {
            Some(node) => node.stop().await,
            None => Ok(()),
        }
    }
}

/// Acts on a connection, and ends what that started, however it went.
pub(crate) async fn within<T>(
    open: impl Future<Output = anyhow::Result<Connection>>,
    act: impl AsyncFnOnce(&Connection) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let connection = open.await?;
    let outcome = act(&connection).await;
    connection.close().await?;
    outcome
}

/// The server that runs on a state directory; `None` only where none does, or where no key to it is here. A key goes to
/// the process that its socket proves to be that server, and never to a port that a file names.
///
/// # Errors
/// A server that is there and cannot be used: what it would have been asked is asked of nothing else.
async fn running(dir: &Path, given: Option<&str>) -> anyhow::Result<Option<Client>> {
    let waited = Stopwatch::start();
    loop {
        let Some(socket) = local::find(dir).await? else { return Ok(None) };
        let key = given.map(str::to_owned);
        let Some(key) = key.map_or_else(|| state::key_read(dir), |key| Ok(Some(key)))? else {
            return Ok(None);
        };
        let looked = match state::endpoint_read(dir) {
            Some(endpoint) => {
                let client = Client::local(socket, &endpoint.url, &key)?;
                client.look().await.map(|_| client)
            }
            None => Err(ServerFault::Unannounced),
        };
        match looked {
            Ok(client) => return Ok(Some(client)),
            // It begins, or ends, at this moment.
            Err(ServerFault::Unannounced | ServerFault::Gone) if waited.elapsed() < TURN => {
                clock::sleep(LOOK).await
            }
            Err(ill) => return Err(ill.says(dir).into()),
        }
    }
}

/// Whether an address is one of a server. Pure.
fn check_url(url: &str) -> Result<(), Misuse> {
    let host = ["http://", "https://"].iter().find_map(|scheme| url.strip_prefix(scheme));
    match host {
        Some(host) if !host.is_empty() && !host.starts_with('/') => Ok(()),
        Some(_) => Err(Misuse(format!("--server {url}: write a host after the scheme"))),
        None => {
            let host = url.rsplit("://").next().unwrap_or_default();
            Err(Misuse(format!("--server {url}: write http://{host}, or https://{host}")))
        }
    }
}

/// What to say of an address that a key would reach in clear, beyond this host.
fn in_clear(url: &str) -> Option<String> {
    let rest = url.strip_prefix("http://")?;
    let host = rest.split(['/', '?']).next().unwrap_or_default();
    let is_here = host.starts_with("127.") || host.starts_with("[::1]") || {
        let name = host.split(':').next().unwrap_or_default();
        name.eq_ignore_ascii_case("localhost")
    };
    (!is_here).then(|| format!("the key goes to {host} in clear text; use https (up --tls-cert)"))
}

#[cfg(test)]
mod tests {
    use super::{check_url, in_clear};

    #[test]
    fn an_address_without_a_scheme_is_refused_with_one() {
        for good in ["http://127.0.0.1:1", "https://ci.example/"] {
            assert!(check_url(good).is_ok(), "{good}");
        }
        let why = check_url("127.0.0.1:7391").unwrap_err().0;
        assert_eq!(
            why,
            "--server 127.0.0.1:7391: write http://127.0.0.1:7391, or https://127.0.0.1:7391"
        );
        assert!(check_url("http://").is_err() && check_url("ftp://x").is_err());
    }

    #[test]
    fn l8_a_key_that_leaves_the_host_in_clear_gets_a_warning() {
        for clear in ["http://ci.example:7070", "http://10.0.0.1/", "http://localhost.example"] {
            assert!(in_clear(clear).is_some(), "{clear}");
        }
        for fine in
            ["https://ci.example", "http://127.0.0.1:1", "http://[::1]:1", "http://localhost:1/"]
        {
            assert_eq!(in_clear(fine), None, "{fine}");
        }
    }
}
