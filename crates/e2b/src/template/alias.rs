//! Whether a template is there, by its name.

use schemars::JsonSchema;
use serde::Serialize;

use crate::call::{Call, Outcome};
use crate::template::names::{built, is_known, missing};
use crate::{answer, query};

/// A template by its alias.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct TemplateAlias {
    #[serde(rename = "templateID")]
    template_id: String,
    /// One of the host's is everybody's.
    public: bool,
}

/// `GET /templates/aliases/{alias}`. Names are a tenant's own, so another's is simply not there.
pub(crate) async fn alias(call: Call) -> Outcome {
    let alias = &call.param("alias");
    let flows = &call.services.flows;
    let alias = query::decoded(alias).unwrap_or_default();
    // Whether it is there, whatever its tags are.
    let alias = alias.split_once(':').map_or(alias.as_str(), |(name, _)| name);
    if let Some((id, _)) = built(flows, &call.who, alias).await? {
        return Ok(answer::json_of(
            200,
            &TemplateAlias { template_id: id.to_string(), public: false },
        ));
    }
    match is_known(&call.services.live, alias).await.map_err(answer::refused)? {
        true => {
            Ok(answer::json_of(200, &TemplateAlias { template_id: alias.to_owned(), public: true }))
        }
        false => Err(missing(alias)),
    }
}
