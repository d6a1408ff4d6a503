//! `/api/recipes`.

use axum::http::StatusCode;
use cofferdam_contracts::error::{ErrorCode, Refusal, Violation};
use cofferdam_contracts::id::RecipeId;
use cofferdam_contracts::recipe::{Recipe, RecipeRef};

use crate::answer::{Answered, json as answer, ok};
use crate::call::Call;
use crate::routes::{RecipeImport, RecipeImported};

pub(crate) async fn list(call: Call) -> Answered {
    ok(&call.flows().ledger.recipe_list(&call.who.tenant).await?)
}

pub(crate) async fn versions(call: Call) -> Answered {
    let id: RecipeId = call.id("id")?;
    let found = call.flows().ledger.recipe_versions(&call.who.tenant, &id).await?;
    if found.is_empty() {
        return Err(Refusal::not_found("recipe").into());
    }
    ok(&found)
}

pub(crate) async fn import(mut call: Call) -> Answered {
    let request: RecipeImport = call.body()?;
    let recipe = parse(&request)?;
    call.flows().ledger.quota_admit(&call.who.tenant).await?;
    let hash = call.flows().ledger.recipe_import(&call.who, &recipe).await?;
    let imported = RecipeImported {
        recipe_ref: recipe.reference(),
        hash: hash.into(),
        status: "draft".into(),
        form: recipe.form_schema(),
    };
    answer(StatusCode::CREATED, &imported)
}

fn parse(request: &RecipeImport) -> Result<Recipe, Refusal> {
    let origin = request.origin.as_deref().unwrap_or("recipe");
    match (&request.yaml, &request.recipe) {
        (Some(yaml), None) => Recipe::from_yaml(origin, yaml),
        (None, Some(value)) => {
            let recipe: Recipe = serde_json::from_value(value.clone())
                .map_err(|e| Refusal::new(ErrorCode::RecipeInvalid, format!("{origin}: {e}")))?;
            recipe
                .check()
                .map_err(|e| Refusal::new(ErrorCode::RecipeInvalid, format!("{origin}: {e}")))?;
            Ok(recipe)
        }
        _ => Err(Refusal::violations(&[Violation {
            instance_path: String::new(),
            message: "exactly one of yaml and recipe".into(),
        }])),
    }
}

pub(crate) async fn export(mut call: Call) -> Answered {
    let reference: RecipeRef = call.body()?;
    let found = call
        .flows()
        .ledger
        .recipe_find(&call.who.tenant, &reference.id, Some(&reference.v))
        .await?;
    ok(&found.ok_or_else(|| Refusal::not_found("recipe"))?)
}
