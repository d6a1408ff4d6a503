//! Planning on a host: an image that a request names is looked up first.

use cofferdam_contracts::error::error_chain;
use cofferdam_contracts::id::{Digest, SandboxId};
use cofferdam_contracts::sandbox::SandboxRequest;

use super::Host;
use crate::cache::ground;
use crate::images::{Images, SCHEME};
use crate::plan::plan_on;
use crate::spec::plan::Plan;
use crate::spec::refuse::PlanError;

impl Host {
    /// Plans a sandbox on this host, looking up the image that the request may name. An image that
    /// is not here is refused as `envRef`, like everything else that cannot be enforced.
    pub fn plan(&self, request: &SandboxRequest, id: &SandboxId) -> Result<Plan, PlanError> {
        let facts = self.facts();
        let Some(text) = request.env_ref.strip_prefix(SCHEME) else {
            return plan_on(request, id, facts, None);
        };
        let found = Images::open(&facts.state_dir).and_then(|images| images.resolve(text));
        let image = found.map_err(|error| PlanError::new("envRef", error_chain(&error)))?;
        plan_on(request, id, facts, Some(&image))
    }

    /// A digest of what a sandbox of this request begins as: its class, its image, and of the host's programs what tells that
    /// they are others now. Reads files.
    ///
    /// # Errors
    /// This host cannot make one.
    pub fn ground(&self, request: &SandboxRequest, id: &SandboxId) -> Result<Digest, PlanError> {
        ground(&self.plan(request, id)?, self.facts())
    }

    /// What an `envRef` stands for on this host now, for the record of a consent: an image by its
    /// digest, everything else by its name.
    #[must_use]
    pub fn pin(&self, env_ref: &str) -> String {
        let Some(text) = env_ref.strip_prefix(SCHEME) else { return env_ref.to_owned() };
        let found = Images::open(&self.facts().state_dir).and_then(|images| images.resolve(text));
        found.map_or_else(|_| format!("{env_ref} is not here"), |image| image.pinned)
    }
}
