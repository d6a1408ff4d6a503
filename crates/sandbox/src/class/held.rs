//! What holds a sandbox, as far as this process sees it.

use tokio::process::Child;

use crate::class::docker::Attached;
use crate::class::remote::Line;

/// A runtime or an emulator that we started, a container that an engine did, or a line to a provider.
#[derive(Debug)]
pub(crate) enum Held {
    Process(Child),
    Container(Attached),
    Elsewhere(Line),
}

impl Held {
    /// Waits for its end and says how it was; `None` if that cannot be known.
    pub(crate) async fn wait(&mut self) -> Option<String> {
        match self {
            Self::Process(child) => child.wait().await.ok().map(|status| status.to_string()),
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
            Self::Container(_) => true,
            Self::Elsewhere(line) => {
                line.cut();
                true
            }
        }
    }
}
