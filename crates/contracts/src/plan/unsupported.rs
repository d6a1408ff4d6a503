//! What recipes may say before runs can do it. The executor of graphs takes this module away, with its one call.

use crate::error::{ErrorCode, Refusal};
use crate::recipe::Recipe;

/// Refuses a recipe whose graph no run follows yet: a part of a pipeline is not run as if it were all of it.
pub(super) fn check(recipe: &Recipe) -> Result<(), Refusal> {
    let Some(field) = recipe.pipeline_field() else { return Ok(()) };
    let why = format!(
        "recipe {}@{}: {field}: this version checks pipelines and does not run them yet; remove the field, or run the tasks as \
         recipes of their own",
        recipe.id, recipe.v
    );
    Err(Refusal::new(ErrorCode::PolicyViolation, why)
        .with(serde_json::json!({"unsupported": field})))
}
