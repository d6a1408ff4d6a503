//! What a sandbox of this host really was, for its session's record.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use cofferdam_contracts::canonical::digest_bytes;
use cofferdam_contracts::id::Digest;
use cofferdam_contracts::sandbox::EffectivePolicy;
use cofferdam_contracts::session::Attestation;

use crate::class;
use crate::host::task::blocking;
use crate::life::host::Host;
use crate::spec::class::Offer;

/// Digests of the runtimes' programs, each read once: they do not change while a worker runs, and
/// where somebody replaces one, the copy that sandboxes start from is the one that was read.
#[derive(Debug, Default)]
pub(crate) struct ProgramDigests(Mutex<BTreeMap<PathBuf, Option<Digest>>>);

impl ProgramDigests {
    fn known(&self, path: &Path) -> Option<Option<Digest>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(path).cloned()
    }

    fn learn(&self, path: PathBuf, digest: Option<Digest>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(path, digest);
    }

    /// The digest of a program.
    async fn of(&self, path: PathBuf) -> Option<Digest> {
        if let Some(known) = self.known(&path) {
            return known;
        }
        let program = path.clone();
        let read = move || fs::read(&program).ok().map(|bytes| digest_bytes(&bytes));
        let digest = blocking(read).await;
        self.learn(path, digest.clone());
        digest
    }
}

impl Host {
    /// The facts of a sandbox of this host that has this policy.
    pub async fn attest(&self, effective: &EffectivePolicy) -> Attestation {
        let facts = self.facts();
        let program = facts.classes.iter().find_map(|fact| match &fact.offer {
            Offer::Present(runtime) if fact.class.strength() == effective.isolation_class => {
                class::of(fact.class).profile.program(runtime)
            }
            _ => None,
        });
        let of_strength = || {
            let mut profiles = class::all().map(|one| one.profile);
            profiles.find(|one| one.class().strength() == effective.isolation_class)
        };
        let cgroups = of_strength().map(|one| one.cgroups(facts.cgroups.mode));
        Attestation {
            class: effective.isolation_class,
            runtime: effective.runtime.clone(),
            runtime_version: effective.runtime_version.clone(),
            runtime_digest: match program {
                Some(path) => self.programs().of(path).await,
                None => None,
            },
            kernel: effective.kernel.clone(),
            cgroups: cgroups.unwrap_or_default().to_owned(),
            hardware_isolation: of_strength().map(|one| facts.hardware_isolation(one.class())),
            weak: effective.weak.clone(),
        }
    }
}
