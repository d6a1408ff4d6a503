//! Making the sandbox and putting our agent into it.

use std::sync::Arc;
use std::time::Duration;

use tokio::net::UnixStream;
use tokio::task::JoinHandle;

use super::api::{Api, RemoteError, Result};
use super::envd::Envd;
use super::frames::Event;
use super::stream::{Events, Held, Line, carry};
use super::wipe::Marker;
use crate::spec::plan::Plan;
use crate::spec::provider::Provider;

/// From the request to the daemon's word that our agent runs.
const START: Duration = Duration::from_secs(30);

/// Makes the sandbox of a plan. What is left of one that fails is found by its marker.
pub(crate) async fn start(
    plan: &Plan,
    provider: Option<&Arc<Provider>>,
    kept_bytes: usize,
) -> Result<(Line, JoinHandle<String>, UnixStream)> {
    let provider = Arc::clone(provider.ok_or(RemoteError::None)?);
    let api = Api::of(Arc::clone(&provider))?;
    // From here on the provider may hold something; before, whoever wipes need not ask it.
    let mut marker = Marker { provider: provider.place(), id: None };
    marker.write(&plan.traces)?;
    let made = api.make(&plan.traces.id).await?;
    marker.id = Some(made.id.clone());
    marker.write(&plan.traces)?;
    let size = api.get(&made.id).await?;
    let size = size.ok_or(RemoteError::Forged { what: "a sandbox that is not there" })?;
    let envd = Envd::of(&provider, &made)?;
    envd.upload().await?;
    let started = tokio::time::timeout(START, async {
        let answer = envd.launch(&plan.task.cwd).await?;
        let mut events = Events::of(answer);
        loop {
            match events.next().await? {
                Event::Started(pid) => return Ok((events, pid)),
                Event::Kept => {}
                Event::Ended(said) => {
                    let what = "starting the agent";
                    return Err(RemoteError::Refused { what, status: 200, said });
                }
                Event::Stdout(_) | Event::Stderr(_) => {
                    return Err(RemoteError::Forged { what: "a process that was not started" });
                }
            }
        }
    });
    let late = RemoteError::Forged { what: "a process that does not start" };
    let (events, pid) = started.await.unwrap_or(Err(late))?;
    carry(Held { api, envd, id: made.id, pid, size }, events, kept_bytes)
}
