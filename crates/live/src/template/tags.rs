//! Tags of a template's builds.

use cofferdam_contracts::id::{BuildId, TemplateId};
use cofferdam_flows::Result;
use cofferdam_ledger::audit::Audit;
use cofferdam_ledger::keys::Principal;

use crate::live::Live;
use crate::message::Message;
use crate::template::build::Builds;
use serde::{Deserialize, Serialize};

/// Gives the build that has a tag these tags as well; whatever had them loses them.
#[derive(Debug, Serialize, Deserialize)]
pub struct TagBuild {
    /// Caller; the template must belong to the tenant of this key.
    pub who: Principal,
    /// Template whose build gets the tags.
    pub template: TemplateId,
    /// A tag, or the id, of the build.
    pub from: String,
    /// Tags to assign, which leave the builds that had them.
    pub tags: Vec<String>,
}

impl Message for TagBuild {
    type Reply = BuildId;

    async fn answer(self, live: &Live) -> Result<Self::Reply> {
        Builds::of(live).tag(&self.who, &self.template, &self.from, &self.tags).await
    }
}

/// Takes tags away. Builds that have none are erased.
#[derive(Debug, Serialize, Deserialize)]
pub struct UntagBuilds {
    /// Caller; the template must belong to the tenant of this key.
    pub who: Principal,
    /// Template whose tags are removed.
    pub template: TemplateId,
    /// Tags to remove; `default` is refused.
    pub tags: Vec<String>,
}

impl Message for UntagBuilds {
    type Reply = ();

    async fn answer(self, live: &Live) -> Result<Self::Reply> {
        Builds::of(live).untag(&self.who, &self.template, &self.tags).await
    }
}

impl Builds {
    /// Gives the build that has the tag `from` these tags as well; whatever had them loses them.
    ///
    /// # Errors
    /// No ready build of the template has that tag.
    async fn tag(
        &self,
        who: &Principal,
        template: &TemplateId,
        from: &str,
        tags: &[String],
    ) -> Result<BuildId> {
        let audit = Audit::by(who, "template.tag", template.as_str());
        let build = self.live.0.ledger.builds().tags_assign(template, from, tags, &audit).await?;
        self.clean_up().await;
        Ok(build)
    }

    /// Takes these tags away. Builds that have none are erased.
    ///
    /// # Errors
    /// The template has none of them.
    async fn untag(&self, who: &Principal, template: &TemplateId, tags: &[String]) -> Result<()> {
        let audit = Audit::by(who, "template.untag", template.as_str());
        self.live.0.ledger.builds().tags_remove(template, tags, &audit).await?;
        self.clean_up().await;
        Ok(())
    }
}
