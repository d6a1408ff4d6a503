//! What a build of a template is made of, and builds as callers reach them.

use std::collections::HashMap;
use std::sync::Arc;

use cofferdam_contracts::id::{Digest, SnapshotId};
use cofferdam_contracts::live::LiveRequest;
use cofferdam_contracts::template_build::{BuildPlan, BuildState};
use cofferdam_ledger::builds::Build;
use cofferdam_ledger::keys::Principal;
use cofferdam_ledger::template_layers::NewLayer;
use cofferdam_sandbox::InitialFiles;

use crate::handle::LiveHandle;
use crate::live::Live;
use crate::snapshot::resume_spec::ResumeSpec;
use crate::template::resolved_template::{BuildOutput, ResolvedTemplate};

/// Builds of templates.
#[derive(Debug, Clone)]
pub struct Builds {
    pub(crate) live: Live,
}

impl Builds {
    /// Of this process.
    #[must_use]
    pub fn of(live: &Live) -> Self {
        Self { live: live.clone() }
    }
}

/// What uploads of a build unpack to, by the names that the client gave them; `None`: that is not known.
pub(crate) type Contents = HashMap<Digest, Option<Digest>>;

/// What a build begins from.
pub(crate) struct Base {
    /// What its sandbox is made of.
    pub template: ResolvedTemplate,
    /// The files that it begins with, where it does with some.
    pub filling: Option<InitialFiles>,
    /// The files of the tenant's template that it is.
    pub files: Option<SnapshotId>,
    pub state: BuildState,
    pub start: Option<String>,
    pub ready: Option<String>,
}

/// A build whose sandbox is up.
pub(crate) struct Work {
    pub who: Principal,
    pub build: Build,
    pub held: Arc<LiveHandle>,
    pub plan: BuildPlan,
    /// What its keys say that its files are.
    pub contents: Contents,
    pub image: Option<String>,
    pub built: BuildOutput,
    /// Keys of its steps, as far as they have one.
    pub keys: Vec<Digest>,
    /// Steps that its files had behind them when it began.
    pub cached: usize,
}

impl Work {
    /// What lies at the head of the files that this build keeps.
    pub(crate) fn resume_spec(&self, built: BuildOutput) -> ResumeSpec {
        ResumeSpec {
            request: LiveRequest::of(self.build.template.as_str()),
            image: self.image.clone(),
            tokens: None,
            memory: false,
            memory_last: false,
            built: Some(built),
        }
    }

    pub(crate) fn layer<'a>(&'a self, key: &'a Digest, steps: usize) -> NewLayer<'a> {
        NewLayer { build: &self.build.id, key, steps: u32::try_from(steps).unwrap_or(u32::MAX) }
    }
}
