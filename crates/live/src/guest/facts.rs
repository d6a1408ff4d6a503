//! What is known of a sandbox in one life of it.

use cofferdam_contracts::id::{LiveId, RunId, TemplateName, TenantId};
use cofferdam_contracts::sandbox::Limits;
use cofferdam_contracts::template_build::TemplateUser;
use serde::{Deserialize, Serialize};

/// What is known of a sandbox in one life of it, and does not change in that.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Facts {
    /// Name of the sandbox, the same in all its lives.
    pub id: LiveId,
    /// Tenant that owns the sandbox.
    pub tenant: TenantId,
    /// The run that holds it, in this life alone.
    pub run: RunId,
    /// What opens the agent from outside. Compare it in constant time.
    pub token: String,
    /// What opens its ports, where they ask for it.
    pub traffic: Option<String>,
    /// Template that it was made of.
    pub template: TemplateName,
    /// The name of its template: of a built one, the name that its tenant gave.
    pub alias: TemplateName,
    /// Limits as enforced.
    pub limits: Limits,
    /// As whom its commands run where nobody says so.
    pub user: TemplateUser,
    /// Where they run then; `None`: in that user's home.
    pub workdir: Option<String>,
    /// Whether it went on where a pause had stopped it, with its processes.
    pub went_on: bool,
}
