//! Which templates this host has.

use std::io;

use cofferdam_contracts::error::{ErrorCode, Refusal};
use cofferdam_contracts::id::{SnapshotId, TemplateName};
use cofferdam_contracts::live::BASE_TEMPLATE;
use cofferdam_contracts::template_build::{DEFAULT_TAG, tagged};
use cofferdam_flows::{Error, Result};
use cofferdam_ledger::keys::Principal;
use cofferdam_sandbox::image::ImageError;
use cofferdam_sandbox::templates::{Template, template, templates};

use crate::live::Live;
use crate::message::Message;
use crate::refusal::refuse;
use crate::snapshot::resume_spec::ResumeSpec;
use crate::template::resolved_template::ResolvedTemplate;
use crate::template::templates::Templates;
use serde::{Deserialize, Serialize};

/// A file that is not as we wrote it is the operator's to mend.
fn broken(error: &ImageError) -> Refusal {
    tracing::error!(%error, "a template cannot be read");
    Refusal::new(
        ErrorCode::Internal,
        "a template of this host cannot be read; the server's log has the cause",
    )
}

/// The template that is always there.
pub(crate) fn base_name() -> Result<TemplateName> {
    TemplateName::parse(BASE_TEMPLATE).map_err(Error::corrupt("template"))
}

/// The files of the ready build that a text names among the tenant's templates; `None`: it names none of these.
#[derive(Debug, Serialize, Deserialize)]
pub struct FindTemplateFiles {
    /// Caller; only templates of this key's tenant are found.
    pub who: Principal,
    /// `ID`, `NAME`, `ID:TAG` or `NAME:TAG`.
    pub text: String,
}

impl Message for FindTemplateFiles {
    type Reply = Option<SnapshotId>;

    async fn answer(self, live: &Live) -> Result<Self::Reply> {
        Templates::of(live).named(&self.who, &self.text).await
    }
}

/// Every template that was built or added on this host.
#[derive(Debug, Serialize, Deserialize)]
pub struct ListHostTemplates;

impl Message for ListHostTemplates {
    type Reply = Vec<Template>;

    async fn answer(self, live: &Live) -> Result<Self::Reply> {
        Templates::of(live).list()
    }
}

impl Templates {
    /// The files of the ready build that `ID`, `NAME`, `ID:TAG` or `NAME:TAG` names among the tenant's templates; `None`: it
    /// names none of these.
    ///
    /// # Errors
    /// The template is there, and the tag names no build that is ready.
    pub(crate) async fn named(&self, who: &Principal, text: &str) -> Result<Option<SnapshotId>> {
        let Ok((name, tag)) = tagged(text) else { return Ok(None) };
        // No tenant has this name, and most creations ask for it.
        if name == base_name()? {
            return Ok(None);
        }
        let rows = self.live.0.ledger.builds();
        let Some((template, _)) = rows.template(&who.tenant, name.as_str()).await? else {
            return Ok(None);
        };
        let tag = tag.as_deref().unwrap_or(DEFAULT_TAG);
        let build = rows.tagged(&who.tenant, &template, tag).await?;
        match build.and_then(|build| build.snapshot) {
            Some(snapshot) => Ok(Some(snapshot)),
            None => {
                // E2B's words, by which programs such as harbor wait for a build of another process.
                let why = format!(
                    "tag '{tag}' does not exist for template '{name}', or its build is not ready"
                );
                Err(refuse(ErrorCode::NotFound, why))
            }
        }
    }

    /// What a sandbox of this template of the host is made of.
    ///
    /// # Errors
    /// This host has none of this name.
    pub(crate) fn host(&self, name: &TemplateName) -> Result<ResolvedTemplate> {
        Ok(ResolvedTemplate::of_host(name, self.read(name)?))
    }

    /// What the files of a sandbox, or of a built template, are to lie on and begin with.
    pub(crate) fn resolve(&self, resume_spec: &ResumeSpec) -> Result<ResolvedTemplate> {
        let (name, _) = crate::spec::checked(&resume_spec.request)?;
        match &resume_spec.built {
            Some(built) => {
                Ok(ResolvedTemplate::of_built(name, resume_spec.image.clone(), built.clone()))
            }
            None => self.host(&name),
        }
    }

    /// `None`: the host's own programs.
    fn read(&self, name: &TemplateName) -> Result<Option<Template>> {
        // One small file, or none: not worth a thread of its own.
        let found = match template(&self.live.0.state_dir, name) {
            // A server that gave its privileges up makes no sandboxes itself.
            Err(ImageError::Io { source, .. })
                if source.kind() == io::ErrorKind::PermissionDenied =>
            {
                None
            }
            found => found.map_err(|error| broken(&error))?,
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
    pub(crate) fn list(&self) -> Result<Vec<Template>> {
        Ok(templates(&self.live.0.state_dir).map_err(|error| broken(&error))?)
    }
}
