//! Rows of `app.recipes` and `app.recipe_versions`: imports, promotions, exports.

use cofferdam_contracts::config::ConfigRow;
use cofferdam_contracts::error::{ErrorCode, Refusal};
use cofferdam_contracts::id::{Digest, RecipeId, TenantId};
use cofferdam_contracts::recipe::{Recipe, RecipeStatus};
use cofferdam_contracts::recipe_book::{RecipeRow, RecipeVersionRow};
use serde_json::{Value, json};
use sqlx::Row;

use crate::audit::{Audit, append};
use crate::config;
use crate::error::{LedgerError, OpResult, Result, id, json as encode, load, load_all};
use crate::families::Recipes;
use crate::keys::Principal;

/// A stored version: its hash and its status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredRecipe {
    /// SHA-256 of the recipe's canonical form; runs pin it.
    pub hash: Digest,
    /// `draft`, `candidate` or `stable`.
    pub status: RecipeStatus,
}

/// A change of a version's status.
#[derive(Debug, Clone)]
pub struct Promotion<'a> {
    /// Id of the recipe, in the tenant of the audit entry.
    pub id: &'a RecipeId,
    /// Version of the recipe; drafts with other content may share it.
    pub v: &'a str,
    /// Digest of its content; `None`: the stable one, else the newest import.
    pub hash: Option<&'a Digest>,
    /// What it becomes.
    pub to: RecipeStatus,
}

/// A recipe as a request names it.
#[derive(Debug, Clone, Copy)]
pub struct RecipeQuery<'a> {
    /// Id of the recipe, unique in its tenant.
    pub id: &'a RecipeId,
    /// Its version; `None`: the newest import.
    pub v: Option<&'a str>,
    /// Digest of the wanted content; `None`: the stable one of `v`, else the newest import.
    pub hash: Option<&'a Digest>,
}

/// What a tenant may start at this moment.
#[derive(Debug)]
pub struct Admission {
    /// The newest version of every configuration key, the host's and the tenant's.
    pub config: Vec<ConfigRow>,
    /// The refusal of a tenant whose quota is full.
    pub over_quota: Option<Refusal>,
}

/// SQL: the recipe that `id`, and `v` or `hash` where they are not null, name now: stable first, then the newest
/// import. For a statement that reads more.
pub(crate) fn version_json(tenant: &str, id: &str, v: &str, hash: &str) -> String {
    format!(
        "(SELECT json FROM app.recipe_versions
           WHERE tenant_id = {tenant} AND id = {id} AND ({v}::text IS NULL OR v = {v})
             AND ({hash}::text IS NULL OR hash = {hash})
           ORDER BY (status = 'stable' AND {v}::text IS NOT NULL) DESC, imported_at DESC LIMIT 1)"
    )
}

/// Reads [`version_json`] back.
pub(crate) fn version_of(value: Option<Value>) -> Result<Option<Recipe>> {
    value.map(|value| load("recipe_versions.json", value)).transpose()
}

impl Recipes<'_> {
    /// The recipe of a start, if it names one that the tenant has, and what the start is checked against: one statement.
    pub async fn admission(
        self,
        tenant: &TenantId,
        wanted: Option<RecipeQuery<'_>>,
    ) -> Result<(Option<Recipe>, Admission)> {
        let row = sqlx::query(sqlx::AssertSqlSafe(format!(
            "SELECT {} AS config, app.blobs_over_quota($2, $4) AS over, {} AS recipe",
            config::rows_json("$1", "$2", "$3"),
            version_json("$2", "$5", "$6", "$7")
        )))
        .bind(config::host())
        .bind(tenant.as_str())
        .bind(config::known())
        .bind(crate::quota::default_mb())
        .bind(wanted.map(|wanted| wanted.id.as_str()))
        .bind(wanted.and_then(|wanted| wanted.v))
        .bind(wanted.and_then(|wanted| wanted.hash).map(Digest::as_str))
        .fetch_one(self.pool())
        .await?;
        let admission = Admission {
            config: config::rows_of(row.try_get("config")?)?,
            over_quota: crate::quota::refusal(row.try_get("over")?),
        };
        Ok((version_of(row.try_get("recipe")?)?, admission))
    }

    /// Imports recipes as drafts with an audit row each, all or none; a stable `id@v` with other content refuses.
    /// Only a text that the host's own admin brought has the host's reach.
    pub async fn import(self, who: &Principal, recipes: &[Recipe]) -> OpResult<Vec<StoredRecipe>> {
        let mut tx = self.pool().begin().await?;
        let mut stored = Vec::with_capacity(recipes.len());
        for recipe in recipes {
            let one = import_one(&mut tx, who, recipe).await?;
            let target = format!("{}@{}", recipe.id, recipe.v);
            let detail = Some(json!({"hash": one.hash, "status": one.status}));
            let audit = Audit { detail, ..Audit::by(who, "recipe.import", &target) };
            append(&mut tx, &audit).await?;
            stored.push(one);
        }
        tx.commit().await?;
        Ok(stored)
    }

    /// Moves a version on, `draft` to `candidate` to `stable`, with its audit row. What it has already is no change.
    pub async fn promote(
        self,
        promotion: &Promotion<'_>,
        audit: &Audit<'_>,
    ) -> OpResult<StoredRecipe> {
        let Promotion { id: recipe, v, hash, to } = promotion;
        let mut tx = self.pool().begin().await?;
        if !recipe_lock(&mut tx, audit.tenant, recipe).await? {
            return Err(Refusal::not_found("recipe").into());
        }
        let rows: Vec<(String, String)> = sqlx::query_as(
            "SELECT hash, status FROM app.recipe_versions WHERE tenant_id = $1 AND id = $2 AND v = $3
              ORDER BY status = 'stable' DESC, imported_at DESC",
        )
        .bind(audit.tenant.as_str())
        .bind(recipe.as_str())
        .bind(v)
        .fetch_all(&mut *tx)
        .await?;
        let meant = |row: &&(String, String)| hash.is_none_or(|h| h.as_str() == row.0);
        let (found, status) =
            rows.iter().find(meant).ok_or_else(|| Refusal::not_found("recipe version"))?;
        let from = RecipeStatus::parse(status).ok_or_else(|| LedgerError::Row {
            what: "recipe_versions.status",
            why: status.clone(),
        })?;
        let stored = StoredRecipe { hash: id("recipe_versions.hash", found)?, status: *to };
        if from == *to {
            return Ok(stored);
        }
        let is_stable = rows.iter().any(|(_, status)| status == RecipeStatus::Stable.as_str());
        if is_stable || *to < from {
            let why = match is_stable {
                true => {
                    format!("recipe {recipe}@{v} is stable and stays so: give it a new version")
                }
                false => format!("recipe {recipe}@{v} is {status} already"),
            };
            return Err(Refusal::new(ErrorCode::StateConflict, why).into());
        }
        sqlx::query(
            "UPDATE app.recipe_versions SET status = $5 WHERE tenant_id = $1 AND id = $2 AND v = $3 AND hash = $4",
        )
        .bind(audit.tenant.as_str())
        .bind(recipe.as_str())
        .bind(v)
        .bind(found)
        .bind(to.as_str())
        .execute(&mut *tx)
        .await?;
        let detail = Some(json!({"hash": found, "from": from, "to": to}));
        append(&mut tx, &Audit { detail, ..audit.clone() }).await?;
        tx.commit().await?;
        Ok(stored)
    }

    /// Every version of a recipe with its content, oldest first.
    pub async fn bundle(
        self,
        tenant: &TenantId,
        recipe: &RecipeId,
    ) -> Result<Vec<(StoredRecipe, Recipe)>> {
        let rows = sqlx::query(
            "SELECT hash, status, json FROM app.recipe_versions WHERE tenant_id = $1 AND id = $2
              ORDER BY imported_at, v, hash LIMIT 500",
        )
        .bind(tenant.as_str())
        .bind(recipe.as_str())
        .fetch_all(self.pool())
        .await?;
        rows.iter()
            .map(|row| {
                let status: String = row.try_get("status")?;
                let status = RecipeStatus::parse(&status)
                    .ok_or(LedgerError::Row { what: "recipe_versions.status", why: status })?;
                let hash = id("recipe_versions.hash", row.try_get("hash")?)?;
                Ok((
                    StoredRecipe { hash, status },
                    load("recipe_versions.json", row.try_get("json")?)?,
                ))
            })
            .collect()
    }

    /// The recipe that a request names now, or that a run pinned.
    pub async fn find(self, tenant: &TenantId, wanted: RecipeQuery<'_>) -> Result<Option<Recipe>> {
        let query = format!("SELECT {}", version_json("$1", "$2", "$3", "$4"));
        let found: Option<Value> = sqlx::query_scalar(sqlx::AssertSqlSafe(query))
            .bind(tenant.as_str())
            .bind(wanted.id.as_str())
            .bind(wanted.v)
            .bind(wanted.hash.map(Digest::as_str))
            .fetch_one(self.pool())
            .await?;
        version_of(found)
    }

    /// A tenant's recipes.
    pub async fn list(self, tenant: &TenantId) -> Result<Vec<RecipeRow>> {
        let rows = sqlx::query(
            "SELECT r.id, r.title, count(DISTINCT v.v) AS versions, app.ms(max(v.imported_at)) AS imported,
                    (array_agg(v.v ORDER BY v.imported_at DESC))[1] AS latest
               FROM app.recipes r JOIN app.recipe_versions v USING (tenant_id, id)
              WHERE r.tenant_id = $1 GROUP BY r.id, r.title ORDER BY r.id LIMIT 500",
        )
        .bind(tenant.as_str())
        .fetch_all(self.pool())
        .await?;
        load_all("recipes", &rows, |row| {
            Ok(json!({
                "id": row.try_get::<String, _>("id")?,
                "name": row.try_get::<Option<String>, _>("title")?.map_or_else(|| row.try_get("id"), Ok)?,
                "title": row.try_get::<Option<String>, _>("title")?,
                "latestV": row.try_get::<String, _>("latest")?,
                "updatedAt": row.try_get::<i64, _>("imported")?,
                "versions": row.try_get::<i64, _>("versions")?,
                "importedAt": row.try_get::<i64, _>("imported")?,
            }))
        })
    }

    /// A recipe's versions, newest first.
    pub async fn versions(self, tenant: &TenantId, id: &RecipeId) -> Result<Vec<RecipeVersionRow>> {
        let rows = sqlx::query(
            "SELECT v, hash, status, app.ms(imported_at) AS imported FROM app.recipe_versions
              WHERE tenant_id = $1 AND id = $2 ORDER BY imported_at DESC LIMIT 500",
        )
        .bind(tenant.as_str())
        .bind(id.as_str())
        .fetch_all(self.pool())
        .await?;
        load_all("recipe_versions", &rows, |row| {
            Ok(json!({
                "v": row.try_get::<String, _>("v")?,
                "hash": row.try_get::<String, _>("hash")?,
                "status": row.try_get::<String, _>("status")?,
                "importedAt": row.try_get::<i64, _>("imported")?,
            }))
        })
    }
}

/// Imports and promotions of one recipe take turns. Whether there is such a recipe.
async fn recipe_lock(
    conn: &mut sqlx::PgConnection,
    tenant: &TenantId,
    recipe: &RecipeId,
) -> Result<bool> {
    let row = sqlx::query("SELECT FROM app.recipes WHERE tenant_id = $1 AND id = $2 FOR UPDATE")
        .bind(tenant.as_str())
        .bind(recipe.as_str())
        .fetch_optional(conn)
        .await?;
    Ok(row.is_some())
}

async fn import_one(
    conn: &mut sqlx::PgConnection,
    who: &Principal,
    recipe: &Recipe,
) -> OpResult<StoredRecipe> {
    let tenant = &who.tenant;
    let hash =
        recipe.hash().map_err(|e| LedgerError::Row { what: "recipe", why: e.to_string() })?;
    sqlx::query(
        "INSERT INTO app.recipes (tenant_id, id, title) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING",
    )
    .bind(tenant.as_str())
    .bind(recipe.id.as_str())
    .bind(&recipe.title)
    .execute(&mut *conn)
    .await?;
    recipe_lock(conn, tenant, &recipe.id).await?;
    let stable: Option<String> = sqlx::query_scalar(
        "SELECT hash FROM app.recipe_versions
          WHERE tenant_id = $1 AND id = $2 AND v = $3 AND status = 'stable'",
    )
    .bind(tenant.as_str())
    .bind(recipe.id.as_str())
    .bind(&recipe.v)
    .fetch_optional(&mut *conn)
    .await?;
    if stable.as_deref().is_some_and(|s| s != hash.as_str()) {
        let why = format!(
            "recipe {}@{} is stable with other content: give it a new version",
            recipe.id, recipe.v
        );
        return Err(Refusal::new(ErrorCode::Conflict, why).into());
    }
    let status: String = sqlx::query_scalar(
        "INSERT INTO app.recipe_versions AS r (tenant_id, id, v, hash, status, json, is_host_admins)
         VALUES ($1, $2, $3, $4, 'draft', $5, $6)
         ON CONFLICT (tenant_id, id, v, hash) DO UPDATE
           SET imported_at = CASE r.status WHEN 'stable' THEN r.imported_at ELSE clock_timestamp() END,
               is_host_admins = r.is_host_admins OR excluded.is_host_admins
         RETURNING r.status",
    )
    .bind(tenant.as_str())
    .bind(recipe.id.as_str())
    .bind(&recipe.v)
    .bind(hash.as_str())
    .bind(encode("recipe", recipe)?)
    .bind(who.is_host_admin())
    .fetch_one(conn)
    .await?;
    let status = RecipeStatus::parse(&status)
        .ok_or(LedgerError::Row { what: "recipe_versions.status", why: status })?;
    Ok(StoredRecipe { hash, status })
}
