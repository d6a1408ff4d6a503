//! `up`, `api`, `worker`.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use clap::Args;
use cofferdam_http::{Auth, HostName, PublicUrl, ServerConfig, Tls};

use super::exit::Exit;
use super::local::{self, Draft};
use super::locations::Locations;
use super::node::{Node, Parts};
use super::state::Endpoint;
use super::stop::Stop;
use super::worker::WorkerArgs;
use super::{output, state, user};

#[derive(Debug, Clone, Args)]
pub(crate) struct ServeArgs {
    /// Address of the API; port 0 selects a free port
    #[arg(long, default_value = "127.0.0.1:7070")]
    pub listen: SocketAddr,
    /// Let callers without a key submit and approve in the tenant `default` (loopback only)
    #[arg(long)]
    pub no_auth: bool,
    /// Additional host name that requests may use, such as a proxy's (repeatable)
    #[arg(long = "allow-host", env = "COFFERDAM_ALLOW_HOST", value_delimiter = ',', value_name = "NAME", value_parser = HostName::parse)]
    pub allow_hosts: Vec<HostName>,
    /// Public URL of this server, such as a proxy's: the base of reply links and an allowed host name; default: the
    /// listening address
    #[arg(long, env = "COFFERDAM_PUBLIC_URL", value_name = "URL", value_parser = PublicUrl::parse)]
    pub public_url: Option<PublicUrl>,
    /// Speak TLS with the certificate chain in this PEM file
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// The certificate's key, a PEM file
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    #[command(flatten)]
    pub worker: WorkerArgs,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct ApiArgs {
    /// Drop to this user and its groups after binding; needs root and --db
    #[arg(long, value_name = "NAME")]
    pub user: Option<String>,
    #[command(flatten)]
    pub serve: ServeArgs,
}

/// Which halves of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    Both,
    Api,
    Worker,
}

/// What `up` and `api` have and `worker` has not.
pub(crate) trait NodeParts {
    fn serve(&self) -> Option<&ServeArgs>;
    fn worker(&self) -> &WorkerArgs;
    fn user(&self) -> Option<&str> {
        None
    }
}

impl NodeParts for ServeArgs {
    fn serve(&self) -> Option<&ServeArgs> {
        Some(self)
    }
    fn worker(&self) -> &WorkerArgs {
        &self.worker
    }
}

impl NodeParts for ApiArgs {
    fn serve(&self) -> Option<&ServeArgs> {
        Some(&self.serve)
    }
    fn worker(&self) -> &WorkerArgs {
        &self.serve.worker
    }
    fn user(&self) -> Option<&str> {
        self.user.as_deref()
    }
}

impl NodeParts for WorkerArgs {
    fn serve(&self) -> Option<&ServeArgs> {
        None
    }
    fn worker(&self) -> &WorkerArgs {
        self
    }
}

/// Where it answers: the address, and the socket of the state directory.
fn doors(args: &ServeArgs, dir: &Path) -> anyhow::Result<(Draft, ServerConfig)> {
    let tls = match (&args.tls_cert, &args.tls_key) {
        (Some(cert), Some(key)) => Some(Tls::read(cert, key)?),
        _ => None,
    };
    if tls.is_none() && !args.listen.ip().is_loopback() {
        output::note(&format!(
            "keys reach {} in clear text; pass --tls-cert and --tls-key, or use a TLS proxy",
            args.listen
        ));
    }
    let (draft, local) = Draft::listen(dir)?;
    let doors = ServerConfig {
        addr: args.listen,
        auth: if args.no_auth { Auth::None } else { Auth::Keys },
        hosts: args.allow_hosts.clone(),
        public_url: args.public_url.clone(),
        tls,
        local: Some(local),
    };
    Ok((draft, doors))
}

pub(crate) async fn serve(
    at: &Locations,
    args: &impl NodeParts,
    part: Part,
) -> anyhow::Result<Exit> {
    let dir = state::dir(at)?;
    let mut stop = Stop::listen()?;
    let user = args.user().map(|name| user::wanted(at, name)).transpose()?;
    let (draft, listen) = args.serve().map(|args| doors(args, &dir)).transpose()?.unzip();
    let parts = Parts {
        worker: (part != Part::Api).then(|| args.worker()),
        listen,
        allow_dirs: &args.worker().allow_dirs,
        webhook_private: args.worker().webhook_private,
    };
    let mut node = Node::start(at, &dir, parts).await?;
    if !node.is_signing() {
        output::note(
            "signing.key is not the one in force: no webhooks and no reply links here; copy it from \
             a host that has it",
        );
    }
    if let Some(draft) = draft {
        announce(&dir, draft, &node)?;
    }
    if let Err(error) = node.serve(user.as_ref()) {
        state::endpoint_remove(&dir);
        return Err(error);
    }
    node.clean();
    // The first line of stdout is the address: scripts read it.
    output::line(node.url().unwrap_or("worker ready"));
    output::note(&format!("state {}; stop with Ctrl-C", dir.display()));
    if part == Part::Api {
        output::note(
            "no worker runs in this process: it answers creations, resumes, forks and builds of long-lived sandboxes with \
             421; send those to a `cofferdam up` (docs/errors/wrong_server.md)",
        );
    }
    let fenced = async {
        match &node.worker {
            Some(worker) => worker.fenced().await,
            None => std::future::pending().await,
        }
    };
    let exit = tokio::select! {
        () = stop.requested() => Exit::Ok,
        () = fenced => Exit::Fenced,
    };
    state::endpoint_remove(&dir);
    if exit != Exit::Ok {
        output::note("stopping");
    }
    node.stop().await?;
    Ok(exit)
}

/// Says where it is, while this process may still write there.
fn announce(dir: &Path, draft: Draft, node: &Node) -> anyhow::Result<()> {
    state::endpoint_take(dir, draft)?;
    let url = node.url().unwrap_or_default().to_owned();
    let socket = Some(local::NAME.to_owned());
    state::endpoint_write(dir, &Endpoint { url, pid: std::process::id(), socket })
}
