//! The ledger by families: each groups the statements of one table family, and borrows the ledger for a call.

use std::ops::Deref;

use crate::Ledger;

macro_rules! families {
    ($($(#[$doc:meta])+ $accessor:ident: $family:ident),+ $(,)?) => {
        $(
            $(#[$doc])+
            #[derive(Debug, Clone, Copy)]
            pub struct $family<'a>(&'a Ledger);

            impl Deref for $family<'_> {
                type Target = Ledger;

                fn deref(&self) -> &Ledger {
                    self.0
                }
            }
        )+

        impl Ledger {
            $(
                $(#[$doc])+
                #[must_use]
                pub fn $accessor(&self) -> $family<'_> {
                    $family(self)
                }
            )+
        }
    };
}

families! {
    /// Where patches were written.
    applies: Applies,
    /// Files that tasks and steps left.
    artifacts: Artifacts,
    /// Templates that tenants build.
    builds: BuildRows,
    /// Cached bases of dependencies.
    cache: Cache,
    /// Values that operators set.
    config: Config,
    /// Answers in the place of others.
    delegations: Delegations,
    /// Dispatches and their outputs.
    dispatches: Dispatches,
    /// Names on the network: policies, questions, grants.
    egress: EgressRows,
    /// Contents that went, retention, and who uses what.
    erasures: Erasures,
    /// Workers, their heartbeats and their leader.
    executors: Executors,
    /// Gates: opening, answering, time, consent.
    gates: Gates,
    /// Branches and tags of repositories, bound to commits.
    git_refs: GitRefRows,
    /// Images of services, bound by their digests.
    images: Images,
    /// What was asked for.
    intents: Intents,
    /// API keys and the signing key.
    keys: Keys,
    /// Layers of builds of templates.
    layers: LayerRows,
    /// Signed links that answer one gate once.
    links: Links,
    /// Long-lived sandboxes and their lives.
    live: LiveRows,
    /// Providers of models and the calls of them.
    models: Models,
    /// Prompts to OpenCode, answers within them, and patches.
    planner: Planner,
    /// Snapshots of long-lived sandboxes.
    snapshots: SnapshotRows,
    /// Objects of artifact stores.
    objects: Objects,
    /// Workflow operations: cancel, resume, fork.
    ops: Ops,
    /// The queues of the engine: claims, loads.
    queues: Queues,
    /// Recipes and their versions.
    recipes: Recipes,
    /// Runs, their retries and their quota.
    runs: Runs,
    /// Secrets and their uses.
    secrets: Secrets,
    /// Sessions of sandboxes, wipes and settlements.
    sessions: Sessions,
    /// Steps of runs.
    steps: Steps,
    /// Output while it happens.
    streams: Streams,
    /// Attempts of tasks.
    tasks: Tasks,
    /// Host directories bound by their content.
    trees: Trees,
    /// What tenants used, by day.
    usage: UsageRows,
    /// Schedules and hooks, and their firings.
    triggers: Triggers,
    /// Webhooks and their deliveries.
    webhooks: Webhooks,
}
