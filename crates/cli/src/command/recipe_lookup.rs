//! An imported recipe, by the id that a person gave.

use cofferdam_contracts::recipe::{Recipe, RecipeRef};
use cofferdam_contracts::recipe_book::RecipeVersionRow;
use serde_json::{Value, json};

use super::client::{Client, segment};
use super::exit::Negative;

/// Why an argument that names no file means no recipe. Pure.
fn absent(named: &str, error: anyhow::Error) -> anyhow::Error {
    match error.is::<Negative>() {
        true => Negative(format!(
            "no recipe {named:?}: there is neither such a file nor an imported recipe with this id; `cofferdam recipe ls` lists these"
        ))
        .into(),
        false => error,
    }
}

/// The recipe with this id, `ID` or `ID@V`, and its form.
///
/// # Errors
/// None is imported.
pub(crate) async fn known_recipe(
    client: &Client,
    named: &str,
) -> anyhow::Result<(RecipeRef, Value)> {
    let (id, v) = match named.split_once('@') {
        Some((id, v)) => (id.to_owned(), v.to_owned()),
        None => {
            let asked = client.get(&format!("/api/recipes/{}/versions", segment(named))).await;
            let versions: Vec<RecipeVersionRow> = asked.map_err(|error| absent(named, error))?;
            let newest = versions.into_iter().next().map(|newest| newest.v);
            (named.to_owned(), newest.unwrap_or_default())
        }
    };
    let recipe: Recipe = client.post("/api/recipes/export", &json!({"id": id, "v": v})).await?;
    Ok((recipe.reference(), recipe.form_schema()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_without_a_recipe_is_named() {
        let unknown = absent("nosuch", Negative("recipe not found".into()).into());
        assert!(
            unknown.is::<Negative>() && unknown.to_string().contains("\"nosuch\""),
            "{unknown}"
        );
    }
}
