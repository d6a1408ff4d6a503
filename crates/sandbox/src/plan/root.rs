//! The root file system of a sandbox, and where its commands start. Pure.

use cofferdam_contracts::sandbox::SandboxRequest;

use crate::class::{Isolation, ShowsHost};
use crate::host::base::Base;
use crate::host::hostpath::HostPath;
use crate::images::ImageRoot;
use crate::oci::HostDirs;
use crate::spec::facts::HostFacts;
use crate::spec::plan::DEFAULT_WORKDIR;
use crate::spec::refuse::{self, PlanError};
use crate::spec::service::Programs;

/// A root, decided.
pub(crate) struct PlannedRoot<'a> {
    /// The lowest layer.
    pub base: Base,
    /// Whether the host's `/usr` is shown on it.
    pub host_usr: bool,
    /// The directories of the host that a runtime's configuration shows.
    pub shown: HostDirs<'a>,
    /// The servers that it is known to have; absent for one that is not the host's.
    pub programs: Option<&'a Programs>,
    /// Where a command starts.
    pub workdir: String,
}

/// The root that a request names, or that its class has for all requests.
pub(crate) fn of<'a>(
    request: &SandboxRequest,
    facts: &'a HostFacts,
    image: Option<&ImageRoot>,
    class: Isolation,
) -> Result<PlannedRoot<'a>, PlanError> {
    let (base, host_usr) = match (image, class.profile.root(facts)) {
        (Some(image), _) => (Base::Ours(image.root.clone()), false),
        (None, Some(root)) => (root, false),
        (None, None) => named(&request.env_ref, facts)?,
    };
    let shown = match class.inputs.shows_host() {
        ShowsHost::Binds if host_usr => HostDirs::Binds(&facts.binds),
        ShowsHost::Overlays if host_usr => {
            HostDirs::Apart { paths: &facts.binds, empty: &facts.empty }
        }
        _ => HostDirs::Not,
    };
    let of_spec = || request.spec.as_ref()?.working_dir.clone();
    let workdir = request
        .workdir
        .clone()
        .or_else(of_spec)
        .or_else(|| image?.workdir.clone())
        .unwrap_or_else(|| DEFAULT_WORKDIR.to_owned());
    let programs = host_usr.then_some(&facts.services);
    Ok(PlannedRoot { base, host_usr, shown, programs, workdir })
}

/// The base layer, and whether the host's `/usr` is shown on it.
fn named(env_ref: &str, facts: &HostFacts) -> Result<(Base, bool), PlanError> {
    if env_ref == "host" {
        return Ok((Base::Ours(facts.base.clone()), true));
    }
    let Some(dir) = env_ref.strip_prefix("dir:") else {
        return Err(PlanError::new(
            "envRef",
            "must be `host`, `dir:/absolute/path` or `image:NAME`",
        ));
    };
    refuse::absolute("envRef", dir)?;
    let dir = HostPath::said(dir);
    // By its text alone, which is all that is known before it is opened.
    if !facts.allowed.names(&dir) {
        return Err(PlanError::new("envRef", "the directory is outside this host's allowed roots"));
    }
    Ok((Base::Given(dir), false))
}
