//! Taking a remote sandbox away, and asking whether it is gone.
//!
//! | looked for | how |
//! |---|---|
//! | sandbox | the provider answers 404 for its id |
//! | listing | nothing is listed under our name for it |
//!
//! A marker in the state directory says which provider holds it, so an orphan is wiped by whatever worker
//! finds it and has the key. A provider that does not answer is a look that failed, never one that found
//! nothing.

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use cofferdam_ambient::clock;
use cofferdam_contracts::error::error_chain;
use cofferdam_contracts::id::SandboxId;
use cofferdam_contracts::sandbox::{WipeCheck, WipeSubject};
use serde::{Deserialize, Serialize};

use super::api::{Api, META_SANDBOX, RemoteError, Result};
use crate::host::live;
use crate::host::task::ask;
use crate::host::traces::{Traces, markers};
use crate::spec::facts::HostFacts;
use crate::spec::provider::Provider;

/// What is still there is asked for again after 100 ms, for 10 s: a machine that is told to end needs one.
const TRIES: usize = 100;
const PAUSE: Duration = Duration::from_millis(100);

/// Which provider holds a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ProviderMarker {
    /// URL of the provider's API, without a slash at its end.
    pub provider: String,
    /// The sandbox's name there, once it is made.
    pub id: Option<String>,
}

impl ProviderMarker {
    pub(super) fn write(&self, traces: &Traces) -> Result<()> {
        let text = serde_json::to_vec(self).map_err(std::io::Error::other)?;
        if let Some(dir) = traces.marker.parent() {
            live::private_dir(dir)?;
        }
        Ok(fs::write(&traces.marker, text)?)
    }

    /// One without a marker that has a directory was never a provider's; of one that has neither the
    /// worker's own provider is asked, if it has one.
    fn of(traces: &Traces, provider: Option<&Arc<Provider>>) -> Option<Self> {
        let own = || provider.map(|own| Self { provider: own.place(), id: None });
        match fs::read(&traces.marker) {
            Ok(text) => serde_json::from_slice(&text).ok().or_else(|| {
                // Half a marker still says that there was a provider, though not which.
                Some(own().unwrap_or(Self { provider: "an unknown provider".to_owned(), id: None }))
            }),
            Err(_) if traces.dir.exists() => None,
            Err(_) => own(),
        }
    }
}

/// Sandboxes that a provider may hold for this state directory: those that are marked, and what the worker's
/// own provider lists; nothing of it where it does not answer.
pub(super) fn known(facts: &HostFacts) -> Vec<String> {
    let entries = fs::read_dir(markers(&facts.state_dir)).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let mut names: Vec<String> =
        names.filter_map(|name| name.strip_suffix(".json").map(str::to_owned)).collect();
    if let Some(provider) = &facts.provider {
        let provider = Arc::clone(provider);
        let listed = ask(async move { Api::of(provider)?.listed(None).await });
        let listed = listed.ok().and_then(Result::ok).unwrap_or_default();
        let ids = listed.into_iter().filter_map(|one| one.metadata?.remove(META_SANDBOX));
        names.extend(ids);
    }
    names
}

/// Deletes a sandbox, if a provider may hold it, and asks for it; nothing where none may. Blocking.
pub(super) fn take_away(traces: &Traces, facts: &HostFacts) -> Vec<WipeCheck> {
    let Some(marker) = ProviderMarker::of(traces, facts.provider.as_ref()) else {
        return Vec::new();
    };
    let own = facts.provider.as_ref().filter(|own| own.place() == marker.provider);
    let (gone, unlisted) = match own {
        Some(provider) => {
            let (provider, id) = (Arc::clone(provider), traces.id.clone());
            let named = marker.id.clone();
            match ask(async move { remove(&Api::of(provider)?, &id, named).await }) {
                Ok(Ok(seen)) => seen,
                Ok(Err(error)) => {
                    (Some(error_chain(&error)), Some("the provider could not be asked".to_owned()))
                }
                Err(error) => {
                    (Some(error.to_string()), Some("the provider could not be asked".to_owned()))
                }
            }
        }
        None => {
            let why = "this worker has no key for it: start one with --runtime remote and its URL";
            (Some(why.to_owned()), Some(why.to_owned()))
        }
    };
    let is_gone = gone.is_none() && unlisted.is_none();
    let (sandbox, provider) = (traces.id.to_string(), marker.provider);
    let looked =
        WipeSubject::RemoteSandbox { sandbox: sandbox.clone(), provider: provider.clone() };
    let mut checks = vec![WipeCheck::new(looked, gone)];
    checks.push(WipeCheck::new(WipeSubject::RemoteListing { sandbox, provider }, unlisted));
    if is_gone {
        let removed = fs::remove_file(&traces.marker);
        let left = traces.marker.exists().then(|| removed.err().map(|error| error.to_string()));
        let marker = WipeSubject::RemoteMarker(traces.marker.display().to_string());
        checks.push(WipeCheck::new(marker, left.map(Option::unwrap_or_default)));
    }
    checks
}

/// What the provider still had of it at last: under its id, and under our name.
async fn remove(
    api: &Api,
    sandbox: &SandboxId,
    named: Option<String>,
) -> Result<(Option<String>, Option<String>)> {
    let mut ids: Vec<String> = named.into_iter().collect();
    let mut listed = Vec::new();
    let mut there = false;
    for _ in 0..TRIES {
        for id in &ids {
            api.delete(id).await?;
        }
        there = false;
        for id in &ids {
            there |= api.exists(id).await?;
        }
        listed = api.listed(Some(sandbox)).await?.into_iter().map(|one| one.id).collect();
        if !there && listed.is_empty() {
            return Ok((None, None));
        }
        for id in &listed {
            // It becomes part of an address.
            if !id.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-') {
                return Err(RemoteError::Forged { what: "listing sandboxes" });
            }
            if !ids.contains(id) {
                ids.push(id.clone());
            }
        }
        clock::sleep(PAUSE).await;
    }
    let seen = |is_left: bool, words: String| is_left.then_some(words);
    let names = listed.join(", ");
    Ok((
        seen(there, "still there".to_owned()),
        seen(!listed.is_empty(), format!("listed: {names}")),
    ))
}

/// What only the provider could tell.
pub(super) fn not_recheckable() -> Vec<String> {
    [
        "that the provider overwrote the memory and disk of the sandbox, and kept no copy or log of it",
        "that the provider's answers are true",
        "a sandbox that the provider still makes though its answer was lost: no one prolongs it, and it ends \
         by itself",
    ]
    .map(str::to_owned)
    .into()
}
