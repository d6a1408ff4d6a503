//! Stored recipes as readers see them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::id::{Digest, RecipeId};
use crate::recipe::RecipeStatus;

/// One recipe of a tenant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RecipeRow {
    /// Id of the recipe, unique in its tenant.
    pub id: RecipeId,
    /// Its title, or its id where it has none.
    pub name: String,
    /// Title of the version that was imported first; `null` where it had none.
    pub title: Option<String>,
    /// The version that was imported last.
    pub latest_v: String,
    /// How many versions there are.
    pub versions: i64,
    /// When a version was imported last, ms since the epoch.
    pub imported_at: i64,
    /// The same instant, by the name that clients of other registries read.
    pub updated_at: i64,
}

/// One version of a recipe.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RecipeVersionRow {
    /// Version as the recipe names itself: 1 to 32 characters.
    pub v: String,
    /// Digest of its canonical form.
    pub hash: Digest,
    /// How settled it is.
    pub status: RecipeStatus,
    /// When it was imported, ms since the epoch.
    pub imported_at: i64,
}
