//! A command's way to the API: a server that runs, or a node in this process for its duration.

use cofferdam_server::Auth;

use super::args::{At, WorkerArgs};
use super::client::Client;
use super::exit::Misuse;
use super::node::{Node, Parts};
use super::state;

/// Loopback, any free port.
const ANY_PORT: std::net::SocketAddr =
    std::net::SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);

/// An API to talk to.
#[derive(Debug)]
pub(crate) struct Session {
    pub client: Client,
    node: Option<Node>,
}

impl Session {
    /// For commands that read or steer: whatever is queued waits for a worker elsewhere.
    pub(crate) async fn reading(at: &At) -> anyhow::Result<Self> {
        Self::open(at, None).await
    }

    /// For commands that want something executed.
    pub(crate) async fn executing(at: &At) -> anyhow::Result<Self> {
        Self::open(at, Some(&WorkerArgs::default())).await
    }

    async fn open(at: &At, worker: Option<&WorkerArgs>) -> anyhow::Result<Self> {
        if let Some(url) = &at.server {
            let key = match &at.key {
                Some(key) => key.clone(),
                None => state::key_read(&state::dir(at)?)
                    .ok_or_else(|| Misuse("--server needs a key: set COFFERDAM_KEY".into()))?,
            };
            return Ok(Self { client: Client::new(url, &key)?, node: None });
        }
        let dir = state::dir(at)?;
        if let (Some(endpoint), Some(key)) =
            (state::endpoint_read(&dir), at.key.clone().or_else(|| state::key_read(&dir)))
        {
            let client = Client::new(&endpoint.url, &key)?;
            if client.is_up().await {
                return Ok(Self { client, node: None });
            }
        }
        let listen = Some((ANY_PORT, Auth::Keys));
        let allow_dirs = worker.map_or(&[][..], |worker| worker.allow_dirs.as_slice());
        let parts = Parts { worker, listen, allow_dirs, webhook_private: false };
        let node = Node::start(at, &dir, &parts).await?;
        let url = node.url().unwrap_or_default();
        let key = at.key.clone().unwrap_or_else(|| node.key.clone());
        Ok(Self { client: Client::new(&url, &key)?, node: Some(node) })
    }

    /// Whether this process is the server.
    pub(crate) fn is_local(&self) -> bool {
        self.node.is_some()
    }

    /// Ends what this process started.
    pub(crate) async fn close(self) -> anyhow::Result<()> {
        match self.node {
            Some(node) => node.stop().await,
            None => Ok(()),
        }
    }
}
