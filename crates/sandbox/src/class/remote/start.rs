//! Making the sandbox and putting our agent into it.

use std::sync::Arc;
use std::time::Duration;

use reqwest::Response;

use super::api::{Api, CreateResponse, RemoteError, Result, Size};
use super::envd::Envd;
use super::frames::Event;
use super::stream::{ProcessEvents, RemoteSandbox, line};
use super::wipe::ProviderMarker;
use crate::class::isolation::LaunchResult;
use crate::spec::plan::Plan;
use crate::spec::provider::Provider;

/// From the request to the daemon's word that our agent runs.
const START: Duration = Duration::from_secs(30);

/// Makes the sandbox of a plan. What is left of one that fails is found by its marker.
pub(super) async fn start(
    plan: &Plan,
    provider: Option<&Arc<Provider>>,
    kept_bytes: usize,
) -> Result<LaunchResult> {
    let provider = Arc::clone(provider.ok_or(RemoteError::None)?);
    let api = Api::of(Arc::clone(&provider))?;
    // From here on the provider may hold something; before, whoever wipes need not ask it.
    let mut marker = ProviderMarker { provider: provider.place(), id: None };
    marker.write(&plan.traces)?;
    let made = api.make(&plan.traces.id).await?;
    marker.id = Some(made.id.clone());
    marker.write(&plan.traces)?;
    let size = api.get(&made.id).await?;
    let size = size.ok_or(RemoteError::Forged { what: "a sandbox that is not there" })?;
    let envd = Envd::of(&provider, &made)?;
    envd.upload().await?;
    let (events, pid) = begun(envd.launch(&plan.task.cwd)).await?;
    line(held(api, envd, made, size), pid, events, kept_bytes)
}

/// Goes to the agent of a sandbox that another worker began.
pub(crate) async fn attach(
    plan: &Plan,
    provider: Option<&Arc<Provider>>,
    id: &str,
    kept_bytes: usize,
) -> Result<LaunchResult> {
    let provider = Arc::clone(provider.ok_or(RemoteError::None)?);
    let api = Api::of(Arc::clone(&provider))?;
    let (made, size) = api.described(id).await?.ok_or(RemoteError::Gone)?;
    // Whoever wipes must know where to ask, whatever follows.
    ProviderMarker { provider: provider.place(), id: Some(made.id.clone()) }.write(&plan.traces)?;
    if !api.prolong(id).await? {
        return Err(RemoteError::Gone);
    }
    let envd = Envd::of(&provider, &made)?;
    let (events, pid) = begun(envd.attach()).await?;
    line(held(api, envd, made, size), pid, events, kept_bytes)
}

fn held(api: Api, envd: Envd, made: CreateResponse, size: Size) -> RemoteSandbox {
    RemoteSandbox { api, envd, id: made.id, size }
}

/// The daemon's word that a process of ours runs, and its stream.
pub(super) async fn begun(
    asked: impl Future<Output = Result<Response>>,
) -> Result<(ProcessEvents, u32)> {
    let started = tokio::time::timeout(START, async {
        let mut events = ProcessEvents::of(asked.await?);
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
    started.await.unwrap_or(Err(late))
}
