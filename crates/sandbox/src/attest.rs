//! What a sandbox of this host really was, for its session's record.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use cofferdam_contracts::canonical::digest_bytes;
use cofferdam_contracts::id::Digest;
use cofferdam_contracts::sandbox::{EffectivePolicy, IsolationClass};
use cofferdam_contracts::session::Attestation;

use crate::boot::blocking;
use crate::cgroup::CgroupMode;
use crate::class::{Class, Offer};
use crate::host::Host;
use crate::remote::ELSEWHERE;

/// Digests of the runtimes' programs, each read once: they do not change while a worker runs, and
/// where somebody replaces one, the copy that sandboxes start from is the one that was read.
#[derive(Debug, Default)]
pub(crate) struct Programs(Mutex<BTreeMap<PathBuf, Option<Digest>>>);

impl Programs {
    fn known(&self, path: &Path) -> Option<Option<Digest>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(path).cloned()
    }

    fn learn(&self, path: PathBuf, digest: Option<Digest>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(path, digest);
    }
}

impl Host {
    /// The facts of a sandbox of this host that has this policy.
    pub async fn attest(&self, effective: &EffectivePolicy) -> Attestation {
        let facts = self.facts();
        let program = facts.classes.iter().find_map(|fact| match &fact.offer {
            // An engine is asked by its socket, a provider by its URL; no file of this host's is its program.
            Offer::Present(runtime)
                if fact.class.strength() == effective.isolation_class
                    && !matches!(fact.class, Class::Docker | Class::Remote) =>
            {
                Some(runtime.path.clone())
            }
            _ => None,
        });
        let cgroups = match facts.cgroups.mode {
            _ if effective.isolation_class == IsolationClass::Remote => ELSEWHERE,
            CgroupMode::V1 => "v1",
            CgroupMode::Hybrid => "hybrid",
            CgroupMode::V2 => "v2",
        };
        Attestation {
            class: effective.isolation_class,
            runtime: effective.runtime.clone(),
            runtime_version: effective.runtime_version.clone(),
            runtime_digest: match program {
                Some(path) => self.program_digest(path).await,
                None => None,
            },
            kernel: effective.kernel.clone(),
            cgroups: cgroups.to_owned(),
            weak: effective.weak.clone(),
        }
    }

    async fn program_digest(&self, path: PathBuf) -> Option<Digest> {
        if let Some(known) = self.programs().known(&path) {
            return known;
        }
        let program = path.clone();
        let read = move || fs::read(&program).ok().map(|bytes| digest_bytes(&bytes));
        let digest = blocking(read).await;
        self.programs().learn(path, digest.clone());
        digest
    }
}
