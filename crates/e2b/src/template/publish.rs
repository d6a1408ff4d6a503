//! What a template's owner can change of it: nothing, so far, and that is said.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::call::{Call, Outcome};
use crate::template::names::built;
use crate::{answer, body, query};

/// What is said of changes that are not there.
pub(crate) const UNCHANGED: &str = "not supported: changes of templates: a tenant's are its own; `cofferdam template` makes the host's";

/// A change of a template.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct TemplateChange {
    /// `false`, which a tenant's template is already.
    public: Option<bool>,
}

/// Its names, after a change.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct TemplateNames {
    names: [String; 1],
}

/// A template of a tenant stays its own; that it is so is no change. Others are the host's.
pub(crate) async fn change(call: Call) -> Outcome {
    let id = &call.param("id");
    let Call { services, who, body, .. } = call;
    let asked: TemplateChange = body::body(body).await?;
    let id = query::decoded(id).unwrap_or_default();
    match (built(&services.flows, &who, &id).await?, asked.public) {
        (Some((_, name)), None | Some(false)) => {
            Ok(answer::json_of(200, &TemplateNames { names: [name.to_string()] }))
        }
        _ => Err(answer::error(400, UNCHANGED)),
    }
}
