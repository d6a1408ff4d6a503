//! Recipes: imported as drafts, moved on by an operator, each with its audit row.

use cofferdam_contracts::recipe::Recipe;
use cofferdam_ledger::LedgerError;
use cofferdam_ledger::audit::Audit;
use cofferdam_ledger::keys::Principal;
use cofferdam_ledger::recipes::{Promotion, Stored};

use crate::Flows;

impl Flows {
    /// Imports recipes as drafts, all or none.
    pub async fn recipes_import(
        &self,
        who: &Principal,
        recipes: &[Recipe],
    ) -> Result<Vec<Stored>, LedgerError> {
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
