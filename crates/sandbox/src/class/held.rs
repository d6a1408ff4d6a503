//! What holds a sandbox, as far as this process sees it.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use tokio::process::Child;

use crate::class::docker::Attached;
use crate::class::remote::Line;
use crate::host::process;
use crate::host::task::blocking;

/// A first process that was killed has this long to end: what is left then stands in the evidence.
const END_MS: u32 = 5_000;

/// A runtime or an emulator that we started, a container that an engine did, or a line to a provider.
#[derive(Debug)]
pub(crate) enum Held {
    Process(Child),
    /// The first process of a sandbox whose runtime is gone.
    Init(Arc<OwnedFd>),
    Container(Attached),
    Elsewhere(Line),
}

impl Held {
    /// Waits for its end and says how it was; `None` if that cannot be known. For a first process it waits only so long as one that was
    /// killed may take.
    pub(crate) async fn wait(&mut self) -> Option<String> {
        match self {
            Self::Process(child) => child.wait().await.ok().map(|status| status.to_string()),
            Self::Init(init) => {
                let init = Arc::clone(init);
                let ended = move || process::has_ended_within(&init, END_MS);
                blocking(ended).await.then(|| "its first process ended".to_owned())
            }
            Self::Container(attached) => {
                attached.wait().await;
                Some("the container ended".to_owned())
            }
            Self::Elsewhere(line) => {
                line.wait().await;
                Some("the remote agent's stream ended".to_owned())
            }
        }
    }

    /// Ends a process of ours, and says whether it is gone. A container, or what is elsewhere, is the wipe's
    /// to remove.
    pub(crate) async fn kill(&mut self) -> bool {
        match self {
            Self::Process(child) => child.kill().await.is_ok(),
            Self::Init(init) => {
                process::kill(init);
                self.wait().await.is_some()
            }
            Self::Container(_) => true,
            Self::Elsewhere(line) => {
                line.cut();
                true
            }
        }
    }
}
