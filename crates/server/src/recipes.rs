//! Bodies and answers of `/api/recipes`.

use cofferdam_contracts::id::{Digest, RecipeId};
use cofferdam_contracts::recipe::{Recipe, RecipeRef, RecipeStatus};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value;

/// `POST /api/recipes/import`: exactly one of the three.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("oneOf" = [{"required": ["yaml"]}, {"required": ["recipe"]}, {"required": ["bundle"]}]))]
pub struct RecipeImport {
    /// The recipe as its author wrote it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub yaml: Option<String>,
    /// The recipe as JSON.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recipe: Option<Value>,
    /// Every version of one, as `export` gives them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bundle: Option<RecipeBundle>,
    /// How errors name the text, such as a file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub origin: Option<String>,
}

/// Body of `POST /api/recipes/export`: one version of a recipe, or all.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RecipeExport {
    /// Id of the recipe.
    pub id: RecipeId,
    /// Its version; left out: a bundle of all of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 32))]
    pub v: Option<String>,
}

/// A recipe with its versions, as it goes from one installation to another.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RecipeBundle {
    /// Id of the recipe.
    pub id: RecipeId,
    /// Its title, or its id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 4_000))]
    pub name: Option<String>,
    /// Versions of the recipe by time of import, oldest first.
    #[schemars(length(min = 1, max = 500))]
    pub versions: Vec<RecipeVersion>,
}

/// One version in a bundle.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RecipeVersion {
    /// Version of the recipe; it must equal `v` in `recipe`.
    #[schemars(length(min = 1, max = 32))]
    pub v: String,
    /// Of its canonical form.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hash: Option<Digest>,
    /// Where it was exported; what is imported is a draft.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<RecipeStatus>,
    /// The recipe as JSON; `id`, `v` and the hash must match the bundle.
    pub recipe: Value,
}

/// Body of `POST /api/recipes/{id}/promote`: the version and its new status.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RecipePromote {
    /// Version whose status changes.
    #[schemars(length(min = 1, max = 32))]
    pub v: String,
    /// Its content; left out: what was imported last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hash: Option<Digest>,
    /// `candidate` or `stable`.
    pub to: RecipeStatus,
    /// Why, for the audit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1_000), regex(pattern = r"^[^\x00-\x1f\x7f]*$"))]
    pub reason: Option<String>,
}

/// A recipe's version as it is now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RecipePromoteResponse {
    /// Version of the recipe, as `id@v`.
    pub recipe_ref: RecipeRef,
    /// SHA-256 of the recipe's canonical form.
    pub hash: Digest,
    /// What it is now.
    pub status: RecipeStatus,
}

/// An imported recipe.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RecipeImportResponse {
    /// Version of the recipe, as `id@v`.
    pub recipe_ref: RecipeRef,
    /// SHA-256 of the recipe's canonical form; runs pin it.
    pub hash: String,
    /// `draft`, unless this very content is settled already.
    pub status: RecipeStatus,
    /// The schema of its form.
    pub form: Value,
    /// Of a bundle: all of them; the rest is about the last one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub versions: Vec<RecipePromoteResponse>,
}

/// What `export` answers: one version, or a bundle of all of them. On the wire it is the one or the other.
#[derive(Debug, Clone, PartialEq)]
pub enum RecipeExportResponse {
    /// The version that was asked for, in canonical form.
    Recipe(Box<Recipe>),
    /// Title and every version of the recipe, at most 500.
    Bundle(RecipeBundle),
}

impl Serialize for RecipeExportResponse {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Recipe(recipe) => recipe.serialize(serializer),
            Self::Bundle(bundle) => bundle.serialize(serializer),
        }
    }
}

impl JsonSchema for RecipeExportResponse {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "RecipeExportResponse".into()
    }
    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        let recipe = generator.subschema_for::<Recipe>();
        let bundle = generator.subschema_for::<RecipeBundle>();
        schemars::json_schema!({"oneOf": [recipe, bundle]})
    }
}
