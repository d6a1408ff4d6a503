//! Recipes: imported as drafts, moved on by an operator, each with its audit row.

use cofferdam_contracts::recipe::Recipe;
use cofferdam_ledger::Ledger;
use cofferdam_ledger::audit::Audit;
use cofferdam_ledger::keys::Principal;
use cofferdam_ledger::recipes::{Promotion, RecipeQuery, StoredRecipe};

use crate::error::{Error, Result};
use crate::quota::Quota;

/// The recipe of a run that names none: one shell command, `{cmd}`.
const SHELL_RECIPE: &str = r#"
id: shell
v: "1"
title: Run one shell command in a sandbox
form:
  type: object
  required: [cmd]
  additionalProperties: false
  properties:
    cmd: {type: string, minLength: 1, maxLength: 100000, description: the command for /bin/sh -c}
plan:
  tasks:
    - {name: shell, exec: {run: "${form.cmd}"}}
"#;

/// The built-in recipe. `None` never happens: a test parses the text.
pub(crate) fn builtin() -> Option<Recipe> {
    Recipe::from_yaml("built-in", SHELL_RECIPE).ok()
}

/// Recipes of this installation's tenants.
#[derive(Debug, Clone)]
pub struct Recipes {
    ledger: Ledger,
    quota: Quota,
}

impl Recipes {
    pub(crate) fn new(ledger: &Ledger, quota: &Quota) -> Self {
        Self { ledger: ledger.clone(), quota: quota.clone() }
    }

    /// Imports recipes as drafts, all or none. A text that is new needs room in the tenant's quota.
    pub async fn import(&self, who: &Principal, recipes: &[Recipe]) -> Result<Vec<StoredRecipe>> {
        for recipe in recipes {
            let text = recipe.hash().map_err(Error::corrupt("id"))?;
            let wanted = RecipeQuery { id: &recipe.id, v: None, hash: Some(&text) };
            if self.ledger.recipes().find(&who.tenant, wanted).await?.is_none() {
                self.quota.admit(&who.tenant).await?;
                break;
            }
        }
        Ok(self.ledger.recipes().import(who, recipes).await?)
    }

    /// Makes a version a candidate, or stable: from then on nobody changes it.
    pub async fn promote(
        &self,
        who: &Principal,
        promotion: &Promotion<'_>,
        reason: &str,
    ) -> Result<StoredRecipe> {
        let target = format!("{}@{}", promotion.id, promotion.v);
        let audit = Audit { reason, ..Audit::by(who, "recipe.promote", &target) };
        Ok(self.ledger.recipes().promote(promotion, &audit).await?)
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_built_in_recipe_parses() {
        assert!(super::builtin().is_some());
    }
}
