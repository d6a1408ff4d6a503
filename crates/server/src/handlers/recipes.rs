//! Handlers of `/api/recipes`: import, promotion, versions, export.

use axum::http::StatusCode;
use cofferdam_contracts::error::{ErrorCode, Refusal, Violation};
use cofferdam_contracts::id::RecipeId;
use cofferdam_contracts::recipe::{Recipe, RecipeRef, RecipeStatus};
use cofferdam_flows::checks::check;
use cofferdam_ledger::failpoint::busy_point;
use cofferdam_ledger::recipes::{Promotion, RecipeQuery, StoredRecipe};
use serde_json::Value;

use crate::answer::{AnswerResult, json as answer, ok};
use crate::call::Call;
use crate::recipes::{
    RecipeBundle, RecipeExport, RecipeExportResponse, RecipeImport, RecipeImportResponse,
    RecipePromote, RecipePromoteResponse, RecipeVersion,
};

pub(crate) async fn list(call: Call) -> AnswerResult {
    busy_point("recipes.list");
    ok(&call.flows().ledger.recipes().list(&call.who.tenant).await?)
}

pub(crate) async fn versions(call: Call) -> AnswerResult {
    let id: RecipeId = call.id("id")?;
    let found = call.flows().ledger.recipes().versions(&call.who.tenant, &id).await?;
    if found.is_empty() {
        return Err(Refusal::not_found("recipe").into());
    }
    ok(&found)
}

pub(crate) async fn import(mut call: Call) -> AnswerResult {
    let request: RecipeImport = call.body()?;
    let recipes = check(&call.who.tenant, || parse(&request)).await??;
    let stored = call.flows().recipes.import(&call.who, &recipes).await?;
    let (Some(recipe), Some(last)) = (recipes.last(), stored.last()) else {
        return Err(Refusal::not_found("recipe").into());
    };
    let all = recipes.iter().zip(&stored).map(|(recipe, stored)| stored_of(recipe, stored));
    let imported = RecipeImportResponse {
        recipe_ref: recipe.reference(),
        hash: last.hash.to_string(),
        status: last.status,
        form: recipe.form_schema(),
        versions: if request.bundle.is_some() { all.collect() } else { Vec::new() },
    };
    answer(StatusCode::CREATED, &imported)
}

fn stored_of(recipe: &Recipe, stored: &StoredRecipe) -> RecipePromoteResponse {
    let (hash, status) = (stored.hash.clone(), stored.status);
    RecipePromoteResponse { recipe_ref: recipe.reference(), hash, status }
}

fn parse(request: &RecipeImport) -> Result<Vec<Recipe>, Refusal> {
    let origin = request.origin.as_deref().unwrap_or("recipe");
    match (&request.yaml, &request.recipe, &request.bundle) {
        (Some(yaml), None, None) => Ok(vec![Recipe::from_yaml(origin, yaml)?]),
        (None, Some(value), None) => Ok(vec![checked(origin, value)?]),
        (None, None, Some(bundle)) => bundle.versions.iter().map(|v| version(bundle, v)).collect(),
        _ => Err(Refusal::violations(&[Violation {
            instance_path: String::new(),
            message: "pass exactly one of yaml, recipe and bundle".into(),
        }])),
    }
}

fn checked(origin: &str, value: &Value) -> Result<Recipe, Refusal> {
    let recipe: Recipe = serde_json::from_value(value.clone())
        .map_err(|e| Refusal::new(ErrorCode::RecipeInvalid, format!("{origin}: {e}")))?;
    recipe.check().map_err(|e| Refusal::new(ErrorCode::RecipeInvalid, format!("{origin}: {e}")))?;
    Ok(recipe)
}

/// A version of a bundle is what the bundle says that it is.
fn version(bundle: &RecipeBundle, version: &RecipeVersion) -> Result<Recipe, Refusal> {
    let recipe = checked(&format!("{}@{}", bundle.id, version.v), &version.recipe)?;
    let hash = recipe.hash().map_err(|e| Refusal::new(ErrorCode::RecipeInvalid, e.to_string()))?;
    if recipe.id != bundle.id
        || recipe.v != version.v
        || version.hash.as_ref().is_some_and(|h| *h != hash)
    {
        let why = format!("{}@{}: the content does not match the bundle", bundle.id, version.v);
        return Err(Refusal::new(ErrorCode::RecipeInvalid, why));
    }
    Ok(recipe)
}

pub(crate) async fn export(mut call: Call) -> AnswerResult {
    let wanted: RecipeExport = call.body()?;
    let ledger = &call.flows().ledger;
    if wanted.v.is_some() {
        let one = RecipeQuery { id: &wanted.id, v: wanted.v.as_deref(), hash: None };
        let found = ledger.recipes().find(&call.who.tenant, one).await?;
        let found = found.ok_or_else(|| Refusal::not_found("recipe"))?;
        return ok(&RecipeExportResponse::Recipe(Box::new(found)));
    }
    let all = ledger.recipes().bundle(&call.who.tenant, &wanted.id).await?;
    let Some((_, newest)) = all.last() else {
        return Err(Refusal::not_found("recipe").into());
    };
    let name = Some(newest.title.clone().unwrap_or_else(|| newest.id.to_string()));
    let mut versions = Vec::with_capacity(all.len());
    for (stored, recipe) in all {
        versions.push(RecipeVersion {
            v: recipe.v.clone(),
            hash: Some(stored.hash),
            status: Some(stored.status),
            recipe: serde_json::to_value(&recipe)
                .map_err(|e| Refusal::new(ErrorCode::Internal, e.to_string()))?,
        });
    }
    ok(&RecipeExportResponse::Bundle(RecipeBundle { id: wanted.id, name, versions }))
}

pub(crate) async fn promote(mut call: Call) -> AnswerResult {
    let id: RecipeId = call.id("id")?;
    let request: RecipePromote = call.body()?;
    if request.to == RecipeStatus::Draft {
        return Err(Refusal::violations(&[Violation {
            instance_path: "/to".into(),
            message: "the target is candidate or stable; a version never becomes a draft again"
                .into(),
        }])
        .into());
    }
    let what = Promotion { id: &id, v: &request.v, hash: request.hash.as_ref(), to: request.to };
    let reason = request.reason.as_deref().unwrap_or("");
    let now = call.flows().recipes.promote(&call.who, &what, reason).await?;
    let recipe_ref = RecipeRef { id: id.clone(), v: request.v.clone() };
    ok(&RecipePromoteResponse { recipe_ref, hash: now.hash, status: now.status })
}
