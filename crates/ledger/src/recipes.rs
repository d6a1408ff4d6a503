//! `app.recipes`, `app.recipe_versions`.

use cofferdam_contracts::error::{ErrorCode, Refusal};
use cofferdam_contracts::id::{Digest, RecipeId, TenantId};
use cofferdam_contracts::recipe::Recipe;
use serde_json::{Value, json};
use sqlx::Row;

use crate::Ledger;
use crate::error::{LedgerError, Result, json as encode, load};
use crate::keys::Principal;

impl Ledger {
    /// Imports a recipe as a draft; a stable `id@v` with other content refuses. Only a text that the host's own
    /// admin brought has the host's reach.
    pub async fn recipe_import(&self, who: &Principal, recipe: &Recipe) -> Result<Digest> {
        let tenant = &who.tenant;
        let hash =
            recipe.hash().map_err(|e| LedgerError::Row { what: "recipe", why: e.to_string() })?;
        let mut tx = self.pool().begin().await?;
        sqlx::query(
            "INSERT INTO app.recipes (tenant_id, id, title) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING",
        )
        .bind(tenant.as_str())
        .bind(recipe.id.as_str())
        .bind(&recipe.title)
        .execute(&mut *tx)
        .await?;
        let stable: Option<String> = sqlx::query_scalar(
            "SELECT hash FROM app.recipe_versions
              WHERE tenant_id = $1 AND id = $2 AND v = $3 AND status = 'stable'",
        )
        .bind(tenant.as_str())
        .bind(recipe.id.as_str())
        .bind(&recipe.v)
        .fetch_optional(&mut *tx)
        .await?;
        if stable.as_deref().is_some_and(|s| s != hash.as_str()) {
            return Err(Refusal::new(
                ErrorCode::Conflict,
                format!(
                    "recipe {}@{} is stable with other content: give it a new version",
                    recipe.id, recipe.v
                ),
            )
            .into());
        }
        sqlx::query(
            "INSERT INTO app.recipe_versions AS r (tenant_id, id, v, hash, status, json, is_host_admins)
             VALUES ($1, $2, $3, $4, 'draft', $5, $6)
             ON CONFLICT (tenant_id, id, v, hash) DO UPDATE
               SET imported_at = CASE r.status WHEN 'stable' THEN r.imported_at ELSE clock_timestamp() END,
                   is_host_admins = r.is_host_admins OR excluded.is_host_admins",
        )
        .bind(tenant.as_str())
        .bind(recipe.id.as_str())
        .bind(&recipe.v)
        .bind(hash.as_str())
        .bind(encode("recipe", recipe)?)
        .bind(who.is_host_admin())
        .execute(&mut *tx)
        .await?;
        tx.commit().await?;
        Ok(hash)
    }

    /// The recipe that `id` (and `v`) names now: stable first, then the newest import.
    pub async fn recipe_find(
        &self,
        tenant: &TenantId,
        recipe: &RecipeId,
        v: Option<&str>,
    ) -> Result<Option<Recipe>> {
        let found: Option<Value> = sqlx::query_scalar(
            "SELECT json FROM app.recipe_versions
              WHERE tenant_id = $1 AND id = $2 AND ($3::text IS NULL OR v = $3)
              ORDER BY (status = 'stable' AND $3 IS NOT NULL) DESC, imported_at DESC LIMIT 1",
        )
        .bind(tenant.as_str())
        .bind(recipe.as_str())
        .bind(v)
        .fetch_optional(self.pool())
        .await?;
        found.map(|value| load("recipe_versions.json", value)).transpose()
    }

    /// The recipe that a run pinned.
    pub async fn recipe_by_hash(
        &self,
        tenant: &TenantId,
        id: &RecipeId,
        hash: &Digest,
    ) -> Result<Option<Recipe>> {
        let found: Option<Value> = sqlx::query_scalar(
            "SELECT json FROM app.recipe_versions WHERE tenant_id = $1 AND id = $2 AND hash = $3 LIMIT 1",
        )
        .bind(tenant.as_str())
        .bind(id.as_str())
        .bind(hash.as_str())
        .fetch_optional(self.pool())
        .await?;
        found.map(|value| load("recipe_versions.json", value)).transpose()
    }

    /// A tenant's recipes.
    pub async fn recipe_list(&self, tenant: &TenantId) -> Result<Vec<Value>> {
        let rows = sqlx::query(
            "SELECT r.id, r.title, count(DISTINCT v.v) AS versions, app.ms(max(v.imported_at)) AS imported
               FROM app.recipes r JOIN app.recipe_versions v USING (tenant_id, id)
              WHERE r.tenant_id = $1 GROUP BY r.id, r.title ORDER BY r.id LIMIT 500",
        )
        .bind(tenant.as_str())
        .fetch_all(self.pool())
        .await?;
        rows.iter()
            .map(|row| {
                Ok(json!({
                    "id": row.try_get::<String, _>("id")?,
                    "title": row.try_get::<Option<String>, _>("title")?,
                    "versions": row.try_get::<i64, _>("versions")?,
                    "importedAt": row.try_get::<i64, _>("imported")?,
                }))
            })
            .collect()
    }

    /// A recipe's versions, newest first.
    pub async fn recipe_versions(&self, tenant: &TenantId, id: &RecipeId) -> Result<Vec<Value>> {
        let rows = sqlx::query(
            "SELECT v, hash, status, app.ms(imported_at) AS imported FROM app.recipe_versions
              WHERE tenant_id = $1 AND id = $2 ORDER BY imported_at DESC LIMIT 500",
        )
        .bind(tenant.as_str())
        .bind(id.as_str())
        .fetch_all(self.pool())
        .await?;
        rows.iter()
            .map(|row| {
                Ok(json!({
                    "v": row.try_get::<String, _>("v")?,
                    "hash": row.try_get::<String, _>("hash")?,
                    "status": row.try_get::<String, _>("status")?,
                    "importedAt": row.try_get::<i64, _>("imported")?,
                }))
            })
            .collect()
    }
}
