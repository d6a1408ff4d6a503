//! Keeps the server up: one that was killed is started again by whoever uses it.
//!
//! Every process of a server holds `server.lock`, so a free one says that nothing of it lives. While
//! anybody uses the cluster nobody shuts it down, so then it ended without being asked to.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

use cofferdam_ambient::clock;
use tokio::process::Child;
use tokio::sync::{Mutex, oneshot};

use super::directories::ClusterDirs;
use super::error::ClusterError;
use super::launch::launch;
use super::lock;
use super::postmaster::{self, Ready, ServerLookup};
use super::server::Search;

/// A look is one `open` and one `flock`. With crash recovery, an outage lasts a second.
const LOOK: Duration = Duration::from_millis(250);
/// A server that does not start (a full disk, damaged files) is tried again this often.
const LONGEST_PAUSE: Duration = Duration::from_secs(15);

/// The server as this process knows it.
#[derive(Debug, Default)]
pub(super) struct ServerProcess {
    pub(super) pid: AtomicI32,
    /// Where it is our child and must be reaped.
    pub(super) child: Mutex<Option<Child>>,
}

/// Starts the server, or joins the one that runs. The caller holds `start.lock`.
pub(super) async fn bring_up(
    place: &ClusterDirs,
    home: &Path,
    search: &Search,
    running: &ServerProcess,
) -> Result<Ready, ClusterError> {
    let data = home.join("data");
    let ready = match postmaster::find(home, &data).await? {
        ServerLookup::Ready(server) => server,
        ServerLookup::Nobody(hold) => {
            let mut child = running.child.lock().await;
            let launched = child.insert(launch(place, home, hold, search).await?);
            postmaster::started(home, &data, launched).await?
        }
    };
    running.pid.store(ready.pid, Ordering::Release);
    Ok(ready)
}

/// Looks until `end` falls; a start under way is finished first, so that none is ever lost sight of.
pub(super) async fn supervise(
    place: ClusterDirs,
    home: std::path::PathBuf,
    search: Search,
    running: Arc<ServerProcess>,
    mut end: oneshot::Receiver<()>,
) {
    let mut pause = LOOK;
    loop {
        tokio::select! {
            _ = &mut end => return,
            () = clock::sleep(pause) => {}
        }
        // Without the file the state directory was deleted under us: it is not made again.
        if !lock::is_free(&home.join("server.lock")) {
            pause = LOOK;
            continue;
        }
        match again(&place, &home, &search, &running).await {
            Ok(pid) => {
                pause = LOOK;
                tracing::warn!(
                    pid,
                    "the private database had ended without being asked to; it runs again"
                );
            }
            Err(error) => {
                pause = (pause * 2).min(LONGEST_PAUSE);
                tracing::error!(%error, "the private database is down and does not start");
            }
        }
    }
}

async fn again(
    place: &ClusterDirs,
    home: &Path,
    search: &Search,
    running: &ServerProcess,
) -> Result<i32, ClusterError> {
    let _starting = lock::exclusive(&place.base.join("start.lock")).await?;
    bring_up(place, home, search, running).await.map(|ready| ready.pid)
}
