//! Sandboxes without an owner: found after a crash, destroyed, and evidenced.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use cofferdam_contracts::id::SandboxId;
use cofferdam_contracts::sandbox::WipeEvidence;

use crate::class;
use crate::host::crypt;
use crate::host::task::blocking;
use crate::host::traces::{Traces, cgroup_prefix, locate, runtime_root, sandboxes};
use crate::life::host::Host;
use crate::life::wipe::{self, Subject};
use crate::spec::facts::HostFacts;

/// Destroys every sandbox of this host's state directory that `is_live` does not know: those with a
/// directory, a state of the runtime, a cgroup or an encrypted layer. The reason of the evidence is `orphan`. Call it at
/// start and at takeover, with the sandboxes that are being made among the live ones; those of other
/// state directories are never touched.
pub async fn reconcile(host: &Host, is_live: impl Fn(&SandboxId) -> bool) -> Vec<WipeEvidence> {
    let mut evidence = Vec::new();
    for id in known(host.facts()) {
        let waits = host.warm_pool().has(&id) || host.waits().has(&id);
        if !is_live(&id) && !waits {
            tracing::warn!(sandbox = %id, "a sandbox without an owner is destroyed");
            let traces = Traces::of(&host.facts().state_dir, &host.facts().live_dir, &id);
            evidence.push(end(host.shared(), traces, "orphan").await);
        }
    }
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
    let subject = Subject::found(traces);
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
        .chain(listed(&runtime_root(live)))
        .chain(groups)
        .chain(crypt::names(state))
        .chain(class::all().flat_map(|one| one.known(facts)))
        .filter_map(|name| SandboxId::parse(&name).ok())
        .collect()
}
