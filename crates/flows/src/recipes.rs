//! Recipes: imported as drafts, moved on by an operator, each with its audit row.

use cofferdam_contracts::recipe::Recipe;
use cofferdam_ledger::LedgerError;
use cofferdam_ledger::audit::Audit;
use cofferdam_ledger::keys::Principal;
use cofferdam_ledger::recipes::{Promotion, Stored};

use crate::Flows;
use crate::submit::internal;

impl Flows {
    /// Imports recipes as drafts, all or none. A text that is new needs room in the tenant's quota.
    pub async fn recipes_import(
        &self,
        who: &Principal,
        recipes: &[Recipe],
    ) -> Result<Vec<Stored>, LedgerError> {
        for recipe in recipes {
            let text = recipe.hash().map_err(internal)?;
            if self.ledger.recipe_by_hash(&who.tenant, &recipe.id, &text).await?.is_none() {
                self.ledger.quota_admit(&who.tenant).await?;
                break;
            }
        }
        self.ledger.recipes_import(who, recipes).await
    }

    /// Makes a version a candidate, or stable: from then on nobody changes it.
    pub async fn recipe_promote(
        &self,
        who: &Principal,
        promotion: &Promotion<'_>,
        reason: &str,
    ) -> Result<Stored, LedgerError> {
        let target = format!("{}@{}", promotion.id, promotion.v);
        let audit = Audit { reason, ..Audit::by(who, "recipe.promote", &target) };
        self.ledger.recipe_promote(promotion, &audit).await
    }
}
