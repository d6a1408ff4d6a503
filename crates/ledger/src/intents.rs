//! Rows of `app.intents`: what was asked for, once for equal starts of a recipe.

use cofferdam_contracts::gate::Origin;
use cofferdam_contracts::id::{Digest, IntentId, TenantId};
use cofferdam_contracts::run::{Constraints, IntentRequest};
use serde_json::Value;
use sqlx::Row;

use crate::error::{Result, json, load};
use crate::families::Intents;
use crate::runs::Query;

/// An intent to be written.
#[derive(Debug, Clone)]
pub struct NewIntent<'a> {
    /// New id: `it_` and 32 hex digits, or `ih_` and the intent's hash.
    pub id: &'a IntentId,
    /// Tenant that owns it.
    pub tenant: &'a TenantId,
    /// What is wanted.
    pub request: &'a IntentRequest,
    /// For recipe runs: the hash that the id carries.
    pub hash: Option<&'a Digest>,
    /// By which key.
    pub key_id: &'a str,
    /// Source to record for the intent, such as `api-shim`.
    pub origin: Origin,
}

/// An intent as a workflow needs it.
#[derive(Debug, Clone)]
pub struct Intent {
    /// Values for the recipe's form, as a JSON object.
    pub inputs: Value,
    /// Conditions of the caller, such as how long the plan's gate waits.
    pub constraints: Constraints,
}

impl NewIntent<'_> {
    /// Its row, for a statement that takes it whole.
    pub(crate) fn row(&self) -> Result<Value> {
        let Self { id, tenant, request, hash, key_id, origin } = self;
        Ok(serde_json::json!({
            "id": id, "tenant_id": tenant, "goal": request.goal, "inputs": request.inputs,
            "constraints": json("intents.constraints", &request.constraints)?,
            "connectors": json("intents.connectors", &request.connectors)?,
            "intent_hash": hash, "key_id": key_id, "origin": origin.as_str(),
        }))
    }
}

impl Intents<'_> {
    /// Writes an intent; an equal id is the same intent, since ids are random or content hashes.
    pub async fn create(self, new: &NewIntent<'_>) -> Result<()> {
        let mut conn = self.pool().acquire().await?;
        intent_insert(&mut conn, new).await
    }

    /// A tenant's intent.
    pub async fn by_id(self, tenant: &TenantId, id: &IntentId) -> Result<Option<Intent>> {
        let row = sqlx::query(
            "SELECT inputs, constraints FROM app.intents WHERE id = $1 AND tenant_id = $2",
        )
        .bind(id.as_str())
        .bind(tenant.as_str())
        .fetch_optional(self.pool())
        .await?;
        row.map(|row| {
            Ok(Intent {
                inputs: row.try_get("inputs")?,
                constraints: load("intents.constraints", row.try_get("constraints")?)?,
            })
        })
        .transpose()
    }
}

/// The same in the caller's transaction.
pub(crate) async fn intent_insert(
    conn: &mut sqlx::PgConnection,
    new: &NewIntent<'_>,
) -> Result<()> {
    sqlx::query(
        "INSERT INTO app.intents (id, tenant_id, goal, inputs, constraints, connectors, intent_hash, key_id, origin)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9) ON CONFLICT (id) DO NOTHING",
    )
    .bind(new.id.as_str())
    .bind(new.tenant.as_str())
    .bind(&new.request.goal)
    .bind(Value::Object(new.request.inputs.clone()))
    .bind(json("intents.constraints", &new.request.constraints)?)
    .bind(new.request.connectors.as_ref().map(|c| json("intents.connectors", c)).transpose()?)
    .bind(new.hash.map(Digest::as_str))
    .bind(new.key_id)
    .bind(new.origin.as_str())
    .execute(conn)
    .await?;
    Ok(())
}

/// An intent beside its run, in one statement behind the run's 23 parameters; without one, nothing.
pub(crate) const INTENT: &str =
    "INSERT INTO app.intents (id, tenant_id, goal, inputs, constraints, connectors, intent_hash, key_id, origin)
     SELECT $2, $4, $25, $26, $27, $28, $8, $29, $30 WHERE $25::text IS NOT NULL ON CONFLICT (id) DO NOTHING";

/// Binds what [`INTENT`] needs besides the run's.
pub(crate) fn intent_bind(query: Query, new: Option<&NewIntent<'_>>) -> Result<Query> {
    let request = new.map(|new| new.request);
    let connectors = request.and_then(|request| request.connectors.as_ref());
    Ok(query
        .bind(request.map(|request| request.goal.clone()))
        .bind(request.map(|request| Value::Object(request.inputs.clone())))
        .bind(request.map(|r| json("intents.constraints", &r.constraints)).transpose()?)
        .bind(connectors.map(|c| json("intents.connectors", c)).transpose()?)
        .bind(new.map(|new| new.key_id.to_owned()))
        .bind(new.map(|new| new.origin.as_str())))
}
