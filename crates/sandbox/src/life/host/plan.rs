//! Planning on a host: an image that a request names is looked up first.

use std::fs::File;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;

use cofferdam_contracts::error::error_chain;
use cofferdam_contracts::id::{Digest, SandboxId};
use cofferdam_contracts::sandbox::SandboxRequest;
use cofferdam_contracts::user::UserName;

use super::Host;
use crate::cache::input_digest;
use crate::host::account;
use crate::host::hostpath::{HostPath, Links};
use crate::images::{ImageRoot, Images, SCHEME, ServiceRoots};
use crate::plan::plan_on;
use crate::spec::facts::HostFacts;
use crate::spec::plan::Plan;
use crate::spec::refuse::{self, PlanError};
use crate::spec::users::{self, Accounts};

/// How an `envRef` names a directory of the host.
const DIRECTORY: &str = "dir:";

impl Host {
    /// Plans a sandbox on this host, looking up the image that the request may name. An image that
    /// is not here is refused as `envRef`, like everything else that cannot be enforced.
    pub fn plan(&self, request: &SandboxRequest, id: &SandboxId) -> Result<Plan, PlanError> {
        plan_with(self.facts(), request, id, ServiceRoots::new())
    }

    /// A digest of what a sandbox of this request begins as: its class, its image, and of the host's programs what tells that
    /// they are others now. Reads files.
    ///
    /// # Errors
    /// This host cannot make one.
    pub fn input_digest(
        &self,
        request: &SandboxRequest,
        id: &SandboxId,
    ) -> Result<Digest, PlanError> {
        input_digest(&self.plan(request, id)?, self.facts())
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

/// Plans a sandbox on a host, see [`Host::plan`], with the images of its services, which were pulled.
///
/// # Errors
/// This host cannot make one.
pub fn plan_with(
    facts: &HostFacts,
    request: &SandboxRequest,
    id: &SandboxId,
    mut roots: ServiceRoots,
) -> Result<Plan, PlanError> {
    settle_users(request, &mut roots)?;
    let Some(text) = request.env_ref.strip_prefix(SCHEME) else {
        return plan_on(request, id, facts, None, &accounts(facts, request, None)?, &roots);
    };
    let found = Images::open(&facts.state_dir).and_then(|images| images.resolve(text));
    let image = found.map_err(|error| PlanError::new("envRef", error_chain(&error)))?;
    let accounts = accounts(facts, request, Some(&image))?;
    plan_on(request, id, facts, Some(&image), &accounts, &roots)
}

/// Looks the users that services name up in the images that they run from.
fn settle_users(request: &SandboxRequest, roots: &mut ServiceRoots) -> Result<(), PlanError> {
    let services = request.spec.as_ref().and_then(|spec| spec.services.as_deref());
    for (index, service) in services.unwrap_or_default().iter().enumerate() {
        let user = service.detail.as_ref().and_then(|detail| detail.user.as_ref());
        let (Some(user), Some(pulled)) = (user, roots.get_mut(&service.name)) else { continue };
        let refused = |why| PlanError::new(format!("spec.services[{index}].user"), why);
        let opened = File::open(&pulled.root.root).map_err(|error| refused(error.to_string()))?;
        let found = account::find(&opened, user.as_str());
        pulled.root.user = Some(found.map_err(|error| refused(error_chain(&error)))?);
    }
    Ok(())
}

/// Looks the users that a request names up in its root file system, through descriptors: a tenant may write in it.
fn accounts(
    facts: &HostFacts,
    request: &SandboxRequest,
    image: Option<&ImageRoot>,
) -> Result<Accounts, PlanError> {
    let named = users::named(request);
    if named.is_empty() {
        return Ok(Accounts::new());
    }
    let no_root = |words: String| PlanError::new("envRef", words);
    let ours = |path: &Path| File::open(path).map_err(|error| no_root(error.to_string()));
    let root: OwnedFd = match (image, request.env_ref.strip_prefix(DIRECTORY)) {
        (Some(image), _) => ours(&image.root)?.into(),
        (None, None) => ours(&facts.base)?.into(),
        (None, Some(dir)) => {
            refuse::absolute("envRef", dir)?;
            let opened = facts.allowed.open(&HostPath::said(dir), Links::Refused);
            let opened = opened.map_err(|error| no_root(error_chain(&error)))?;
            opened.as_fd().try_clone_to_owned().map_err(|error| no_root(error.to_string()))?
        }
    };
    let found = |(field, name): (String, &UserName)| match account::find(&root, name.as_str()) {
        Ok(account) => Ok((name.clone(), account)),
        Err(error) => Err(PlanError::new(field, error_chain(&error))),
    };
    named.into_iter().map(found).collect()
}
