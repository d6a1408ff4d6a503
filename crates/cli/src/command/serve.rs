//! `up`, `shim`, `worker`.

use cofferdam_server::Auth;
use tokio::signal::unix::{SignalKind, signal};

use super::args::{At, ServeArgs, WorkerArgs};
use super::exit::Exit;
use super::node::{Node, Parts};
use super::state::Endpoint;
use super::{output, state};

/// Which halves of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    Both,
    Shim,
    Worker,
}

/// What `up` and `shim` have and `worker` has not.
pub(crate) trait Halves {
    fn listen(&self) -> Option<(std::net::SocketAddr, Auth)>;
    fn worker(&self) -> &WorkerArgs;
}

impl Halves for ServeArgs {
    fn listen(&self) -> Option<(std::net::SocketAddr, Auth)> {
        Some((self.listen, if self.no_auth { Auth::None } else { Auth::Keys }))
    }
    fn worker(&self) -> &WorkerArgs {
        &self.worker
    }
}

impl Halves for WorkerArgs {
    fn listen(&self) -> Option<(std::net::SocketAddr, Auth)> {
        None
    }
    fn worker(&self) -> &WorkerArgs {
        self
    }
}

pub(crate) async fn serve(at: &At, args: &impl Halves, part: Part) -> anyhow::Result<Exit> {
    let dir = state::dir(at)?;
    // Before anything starts, so that no signal ends the process without its clean-up.
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let parts = Parts {
        worker: (part != Part::Shim).then(|| args.worker()),
        listen: args.listen(),
        allow_dirs: &args.worker().allow_dirs,
        webhook_private: args.worker().webhook_private,
    };
    let node = Node::start(at, &dir, &parts).await?;
    if !node.is_signing() {
        output::note(
            "signing.key is not the one in force: no webhooks and no reply links here; copy it from \
             a host that has it",
        );
    }
    match node.url() {
        Some(url) => {
            // The first line of stdout is the address: scripts read it.
            output::line(&url);
            state::endpoint_write(&dir, &Endpoint { url, pid: std::process::id() })?;
        }
        None => output::line("worker ready"),
    }
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
