//! Which templates this host has.

use std::io;

use cofferdam_contracts::error::{ErrorCode, Refusal};
use cofferdam_contracts::id::TemplateName;
use cofferdam_contracts::live::BASE_TEMPLATE;
use cofferdam_sandbox::image::ImageError;
use cofferdam_sandbox::templates::{Template, template, templates};

use super::basis::Basis;
use super::registry::Again;
use crate::Flows;
use crate::error::{Error, Result};

/// A file that is not as we wrote it is the operator's to mend.
fn broken(error: &ImageError) -> Refusal {
    tracing::error!(%error, "a template cannot be read");
    Refusal::new(
        ErrorCode::Internal,
        "a template of this host cannot be read; the server's log has the cause",
    )
}

/// The template that is always there.
pub(super) fn base_name() -> Result<TemplateName> {
    TemplateName::parse(BASE_TEMPLATE).map_err(Error::corrupt("template"))
}

impl Flows {
    /// What a sandbox of this template of the host is made of.
    ///
    /// # Errors
    /// This host has none of this name.
    pub(super) fn host_basis(&self, name: &TemplateName) -> Result<Basis> {
        Ok(Basis::of_host(name, self.live_template(name)?))
    }

    /// What the files of a sandbox, or of a built template, are to lie on and begin with.
    pub(super) fn basis_again(&self, again: &Again) -> Result<Basis> {
        let (name, _) = super::checked(&again.request)?;
        match &again.built {
            Some(built) => Ok(Basis::of_built(name, again.image.clone(), built.clone())),
            None => self.host_basis(&name),
        }
    }

    /// `None`: the host's own programs.
    fn live_template(&self, name: &TemplateName) -> Result<Option<Template>> {
        // One small file, or none: not worth a thread of its own.
        let found = match &self.state_dir {
            Some(dir) => match template(dir, name) {
                // A server that gave its privileges up makes no sandboxes itself.
                Err(ImageError::Io { source, .. })
                    if source.kind() == io::ErrorKind::PermissionDenied =>
                {
                    None
                }
                found => found.map_err(|error| broken(&error))?,
            },
            None => None,
        };
        match found {
            None if name.as_str() != BASE_TEMPLATE => {
                let why = format!(
                    "template {:?} not found; `cofferdam template ls` lists this host's",
                    name.as_str()
                );
                Err(Refusal::new(ErrorCode::NotFound, why).into())
            }
            found => Ok(found),
        }
    }

    /// Every template that was built or added on this host.
    ///
    /// # Errors
    /// A file of them cannot be read.
    pub fn live_templates(&self) -> Result<Vec<Template>> {
        match &self.state_dir {
            Some(dir) => Ok(templates(dir).map_err(|error| broken(&error))?),
            None => Ok(Vec::new()),
        }
    }
}
