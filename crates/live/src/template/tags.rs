//! Tags of a template's builds.

use cofferdam_contracts::id::{BuildId, TemplateId};
use cofferdam_flows::Result;
use cofferdam_ledger::audit::Audit;
use cofferdam_ledger::keys::Principal;

use crate::template::build::Builds;

impl Builds {
    /// Gives the build that has the tag `from` these tags as well; whatever had them loses them.
    ///
    /// # Errors
    /// No ready build of the template has that tag.
    pub async fn tag(
        &self,
        who: &Principal,
        template: &TemplateId,
        from: &str,
        tags: &[String],
    ) -> Result<BuildId> {
        let audit = Audit::by(who, "template.tag", template.as_str());
        let build = self.live.0.ledger.builds().tags_assign(template, from, tags, &audit).await?;
        self.tidy().await;
        Ok(build)
    }

    /// Takes these tags away. Builds that have none are erased.
    ///
    /// # Errors
    /// The template has none of them.
    pub async fn untag(
        &self,
        who: &Principal,
        template: &TemplateId,
        tags: &[String],
    ) -> Result<()> {
        let audit = Audit::by(who, "template.untag", template.as_str());
        self.live.0.ledger.builds().tags_remove(template, tags, &audit).await?;
        self.tidy().await;
        Ok(())
    }
}
