//! Sandboxes without an owner: found after a crash, destroyed, and evidenced.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use cofferdam_contracts::id::SandboxId;
use cofferdam_contracts::sandbox::WipeEvidence;

use crate::class;
use crate::host::crypt;
use crate::host::live;
use crate::host::task::blocking;
use crate::host::traces::{Traces, cgroup_prefix, locate, runtime_root, sandboxes};
use crate::life::container_pool;
use crate::life::host::Host;
use crate::life::wipe::{self, WipeTarget};
use crate::spec::facts::HostFacts;

/// Destroys every sandbox of this host's state directory that `is_live` does not know: [`remains`], then
/// [`destroy_orphans`].
pub async fn reconcile(host: &Host, is_live: impl Fn(&SandboxId) -> bool) -> Vec<WipeEvidence> {
    destroy_orphans(host, &remains(host), is_live).await
}

/// The sandboxes of this host's state directory that have a directory, a state of the runtime, a cgroup or an
/// encrypted layer. What waits for its name, with this worker or another living one, is not among them.
#[must_use]
pub fn remains(host: &Host) -> BTreeSet<SandboxId> {
    let waits = |id: &SandboxId| {
        host.machines().warm().has(id)
            || host.waits().has(id)
            || container_pool::is_held(&host.facts().live_dir, id)
    };
    known(host.facts()).into_iter().filter(|id| !waits(id)).collect()
}

/// The containers that waited with a worker of this host's state directory that ended without wiping them. They had
/// no sandbox: [`destroy_orphans`] may end them whatever the ledger says.
#[must_use]
pub fn abandoned(host: &Host) -> BTreeSet<SandboxId> {
    container_pool::abandoned(&host.facts().live_dir)
}

/// Destroys the remains that `is_live` does not know. The reason of the evidence is `orphan`. Call it at
/// start and at takeover, with the sandboxes that are being made among the live ones; those of other
/// state directories are never touched. **Read which ones live after [`remains`]**: a container that another worker
/// takes meanwhile is on record before it stops waiting.
pub async fn destroy_orphans(
    host: &Host,
    remains: &BTreeSet<SandboxId>,
    is_live: impl Fn(&SandboxId) -> bool,
) -> Vec<WipeEvidence> {
    let mut evidence = Vec::new();
    for id in remains {
        if !is_live(id) {
            tracing::warn!(sandbox = %id, "a sandbox without an owner is destroyed");
            let traces = Traces::of(&host.facts().state_dir, &host.facts().live_dir, id);
            evidence.push(end(host.shared(), traces, "orphan").await);
            container_pool::forget(&host.facts().live_dir, id);
        }
    }
    container_pool::sweep(&host.facts().live_dir);
    evidence
}

/// Destroys what is left of one sandbox whose worker is gone, and gives the evidence. `state_dir` is
/// that worker's. Verified also when nothing was left: then the method is `absence`.
pub async fn verify_absent(
    host: &Host,
    id: &SandboxId,
    state_dir: &Path,
    reason: &str,
) -> WipeEvidence {
    host.waits().dismiss(id).await;
    end(host.shared(), locate(state_dir, id), reason).await
}

async fn end(facts: Arc<HostFacts>, traces: Traces, reason: &str) -> WipeEvidence {
    let reason = reason.to_owned();
    let subject = WipeTarget::found(traces);
    blocking(move || wipe::destroy(&facts, &subject, &reason)).await
}

fn known(facts: &HostFacts) -> BTreeSet<SandboxId> {
    let state = &facts.state_dir;
    let listed = |dir: &Path| -> Vec<String> {
        let entries = fs::read_dir(dir).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
    };
    let live = &facts.live_dir;
    let prefix = cgroup_prefix(state);
    let groups = facts.cgroups.names();
    let groups = groups.iter().filter_map(|name| name.strip_prefix(&prefix)).map(str::to_owned);
    listed(&sandboxes(live))
        .into_iter()
        .chain(listed(&live::waits(live)))
        .chain(listed(&runtime_root(live)))
        .chain(groups)
        .chain(crypt::names(state))
        .chain(
            class::all().filter_map(|one| one.custody.custodian()).flat_map(|one| one.known(facts)),
        )
        .filter_map(|name| SandboxId::parse(&name).ok())
        .collect()
}
