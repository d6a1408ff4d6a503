//! `up`, `shim`, `worker`.

use std::path::Path;

use cofferdam_server::{Auth, Doors, Tls};
use tokio::signal::unix::{SignalKind, signal};

use super::args::{At, ServeArgs, ShimArgs, WorkerArgs};
use super::exit::Exit;
use super::local::{self, Draft};
use super::node::{Node, Parts};
use super::state::Endpoint;
use super::{output, state, user};

/// Which halves of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    Both,
    Shim,
    Worker,
}

/// What `up` and `shim` have and `worker` has not.
pub(crate) trait Halves {
    fn serve(&self) -> Option<&ServeArgs>;
    fn worker(&self) -> &WorkerArgs;
    fn user(&self) -> Option<&str> {
        None
    }
}

impl Halves for ServeArgs {
    fn serve(&self) -> Option<&ServeArgs> {
        Some(self)
    }
    fn worker(&self) -> &WorkerArgs {
        &self.worker
    }
}

impl Halves for ShimArgs {
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

impl Halves for WorkerArgs {
    fn serve(&self) -> Option<&ServeArgs> {
        None
    }
    fn worker(&self) -> &WorkerArgs {
        self
    }
}

/// Where it answers: the address, and the socket of the state directory.
fn doors(args: &ServeArgs, dir: &Path) -> anyhow::Result<(Draft, Doors)> {
    let tls = match (&args.tls_cert, &args.tls_key) {
        (Some(cert), Some(key)) => Some(Tls::read(cert, key)?),
        _ => None,
    };
    if tls.is_none() && !args.listen.ip().is_loopback() {
        output::note(&format!(
            "keys go in clear to {}: give --tls-cert and --tls-key, or let a proxy that speaks TLS reach it",
            args.listen
        ));
    }
    let (draft, local) = Draft::listen(dir)?;
    let doors = Doors {
        addr: args.listen,
        auth: if args.no_auth { Auth::None } else { Auth::Keys },
        hosts: args.allow_hosts.clone(),
        public_url: args.public_url.clone(),
        tls,
        local: Some(local),
    };
    Ok((draft, doors))
}

pub(crate) async fn serve(at: &At, args: &impl Halves, part: Part) -> anyhow::Result<Exit> {
    let dir = state::dir(at)?;
    // Before anything starts, so that no signal ends the process without its clean-up.
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let user = args.user().map(|name| user::wanted(at, name)).transpose()?;
    let (draft, listen) = args.serve().map(|args| doors(args, &dir)).transpose()?.unzip();
    let parts = Parts {
        worker: (part != Part::Shim).then(|| args.worker()),
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
    // The first line of stdout is the address: scripts read it.
    output::line(node.url().unwrap_or("worker ready"));
    output::note(&format!("state {}; stop with Ctrl-C", dir.display()));
    let fenced = async {
        match &node.worker {
            Some(worker) => worker.fenced().await,
            None => std::future::pending().await,
        }
    };
    let exit = tokio::select! {
        _ = terminate.recv() => Exit::Ok,
        _ = interrupt.recv() => Exit::Ok,
        () = fenced => Exit::Fenced,
    };
    state::endpoint_remove(&dir);
    output::note("stopping");
    node.stop().await?;
    Ok(exit)
}

/// Says where it is, while this process may still write there.
fn announce(dir: &Path, draft: Draft, node: &Node) -> anyhow::Result<()> {
    draft.publish()?;
    let url = node.url().unwrap_or_default().to_owned();
    let socket = Some(local::NAME.to_owned());
    state::endpoint_write(dir, &Endpoint { url, pid: std::process::id(), socket })
}
