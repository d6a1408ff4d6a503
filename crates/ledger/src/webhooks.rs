//! `app.webhooks`, `app.webhook_deliveries`, `app.webhook_attempts`.
//!
//! ```text
//! a gate moves, a run ends --trigger, same transaction--> pending --claim (lease, SKIP LOCKED)--> sent
//!      ^ replay by an operator                              ^  \-- backoff: next_at ----------------/ |
//!      dead <---------- rounds used up -------------------- / ------------------------> delivered <---/
//! ```
//! A claim is only a later `next_at`: a sender that dies leaves a row that is due again, so an event may
//! arrive twice, always under the same id, and never gets lost.

use cofferdam_contracts::error::{ErrorCode, Refusal};
use cofferdam_contracts::id::{DeliveryId, TenantId, WebhookId};
use cofferdam_contracts::recipe::RecipeRef;
use cofferdam_contracts::webhook::{
    DeliveryRow, DeliveryState, EventType, GateEvent, GateEventData, RunEvent, RunEventData,
    WebhookEvent, WebhookRow,
};
use sqlx::Row;
use sqlx::postgres::PgRow;

use crate::audit::Audit;
use crate::error::{LedgerError, OpResult, Result, id, load};
use crate::families::Webhooks;

/// Webhooks of one tenant: every event is written once for each.
const MAX_WEBHOOKS: i64 = 32;
/// How long a claim holds: longer than any attempt may take.
const LEASE_MS: i64 = 60_000;

/// A webhook to be made.
#[derive(Debug, Clone)]
pub struct NewWebhook<'a> {
    /// New id: `wh_` and 32 hex digits.
    pub id: &'a WebhookId,
    /// Tenant that owns it.
    pub tenant: &'a TenantId,
    /// HTTP or HTTPS endpoint that receives the events, at most 2,048 characters.
    pub url: &'a str,
    /// Types of events that are delivered, at least one.
    pub events: &'a [EventType],
    /// A note for people.
    pub label: Option<&'a str>,
}

/// A delivery that this process sends now.
#[derive(Debug, Clone)]
pub struct Due {
    /// Its id, the same in every attempt.
    pub id: DeliveryId,
    /// Whose secret signs it.
    pub webhook: WebhookId,
    /// Endpoint of the webhook, read when the delivery was claimed.
    pub url: String,
    /// What it tells.
    pub event: WebhookEvent,
    /// Which attempt this is, from 1.
    pub attempt: i32,
    /// Which one of its round: a replay begins a new round.
    pub of_round: i32,
}

/// What came of an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeliveryAttempt<'a> {
    /// The answer's status, where there was an answer.
    pub status: Option<u16>,
    /// Why it failed.
    pub error: Option<&'a str>,
    /// How long it took.
    pub wall_ms: u64,
    /// Who sent it.
    pub worker: &'a str,
    /// Whether the delivery arrived, is tried again or is given up.
    pub next: Next,
}

/// What follows an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Nothing: it arrived.
    Delivered,
    /// The attempt failed, and another one is scheduled.
    Retry {
        /// After this time.
        after_ms: u64,
    },
    /// Nothing: it is given up.
    Dead,
}

fn event_of(row: &PgRow) -> Result<EventType> {
    let text: String = row.try_get("event_type")?;
    EventType::parse(&text)
        .ok_or(LedgerError::Row { what: "webhook_deliveries.event_type", why: text })
}

fn events_of(row: &PgRow) -> Result<Vec<EventType>> {
    let texts: Vec<String> = row.try_get("events")?;
    texts
        .into_iter()
        .map(|text| {
            EventType::parse(&text).ok_or(LedgerError::Row { what: "webhooks.events", why: text })
        })
        .collect()
}

impl Webhooks<'_> {
    /// Makes a webhook, unless its tenant has enough of them.
    pub async fn add(self, new: &NewWebhook<'_>, audit: &Audit<'_>) -> OpResult<()> {
        let mut tx = self.pool().begin().await?;
        // Two that add at the same time take turns, so that neither passes the bound.
        sqlx::query("SELECT pg_advisory_xact_lock(hashtextextended('webhooks:' || $1, 0))")
            .bind(new.tenant.as_str())
            .execute(&mut *tx)
            .await?;
        let events: Vec<&str> = new.events.iter().map(|event| event.as_str()).collect();
        let made = sqlx::query(
            "INSERT INTO app.webhooks (id, tenant_id, url, events, label, key_id)
             SELECT $1, $2, $3, $4, $5, $6 WHERE
               (SELECT count(*) FROM app.webhooks WHERE tenant_id = $2 AND removed_at IS NULL) < $7",
        )
        .bind(new.id.as_str())
        .bind(new.tenant.as_str())
        .bind(new.url)
        .bind(&events)
        .bind(new.label)
        .bind(audit.key_id)
        .bind(MAX_WEBHOOKS)
        .execute(&mut *tx)
        .await?;
        if made.rows_affected() == 0 {
            let why = format!("a tenant has at most {MAX_WEBHOOKS} webhooks: remove one first");
            return Err(Refusal::new(ErrorCode::PolicyViolation, why).into());
        }
        crate::audit::append(&mut tx, audit).await?;
        tx.commit().await?;
        Ok(())
    }

    /// Removes a webhook and gives up what is on its way. `false` where the tenant has no such one.
    pub async fn remove(
        self,
        tenant: &TenantId,
        webhook: &WebhookId,
        audit: &Audit<'_>,
    ) -> Result<bool> {
        let mut tx = self.pool().begin().await?;
        let removed = sqlx::query(
            "UPDATE app.webhooks SET removed_at = clock_timestamp()
              WHERE id = $1 AND tenant_id = $2 AND removed_at IS NULL",
        )
        .bind(webhook.as_str())
        .bind(tenant.as_str())
        .execute(&mut *tx)
        .await?;
        if removed.rows_affected() == 0 {
            return Ok(false);
        }
        sqlx::query(
            "UPDATE app.webhook_deliveries SET state = 'dead', next_at = NULL, ended_at = clock_timestamp(),
                    last_error = 'the webhook was removed'
              WHERE webhook_id = $1 AND state = 'pending'",
        )
        .bind(webhook.as_str())
        .execute(&mut *tx)
        .await?;
        crate::audit::append(&mut tx, audit).await?;
        tx.commit().await?;
        Ok(true)
    }

    /// A tenant's webhooks, newest first.
    pub async fn list(self, tenant: &TenantId) -> Result<Vec<WebhookRow>> {
        let rows = sqlx::query(
            "SELECT w.id, w.url, w.events, w.label, app.ms(w.created_at) AS created, app.ms(w.removed_at) AS removed,
                    (SELECT count(*) FROM app.webhook_deliveries d WHERE d.webhook_id = w.id AND d.state = 'pending') AS pending,
                    (SELECT count(*) FROM app.webhook_deliveries d WHERE d.webhook_id = w.id AND d.state = 'dead') AS dead
               FROM app.webhooks w WHERE w.tenant_id = $1 ORDER BY w.created_at DESC LIMIT 200",
        )
        .bind(tenant.as_str())
        .fetch_all(self.pool())
        .await?;
        rows.iter()
            .map(|row| {
                Ok(WebhookRow {
                    webhook_id: id("webhooks.id", row.try_get("id")?)?,
                    url: row.try_get("url")?,
                    events: events_of(row)?,
                    label: row.try_get("label")?,
                    created_at: row.try_get("created")?,
                    removed_at: row.try_get("removed")?,
                    pending: row.try_get("pending")?,
                    dead: row.try_get("dead")?,
                })
            })
            .collect()
    }

    /// A webhook's deliveries, newest first; `None` where the tenant has no such webhook.
    pub async fn deliveries(
        self,
        tenant: &TenantId,
        webhook: &WebhookId,
        state: Option<DeliveryState>,
        limit: i64,
    ) -> Result<Option<Vec<DeliveryRow>>> {
        let known: bool = sqlx::query_scalar(
            "SELECT EXISTS (SELECT 1 FROM app.webhooks WHERE id = $1 AND tenant_id = $2)",
        )
        .bind(webhook.as_str())
        .bind(tenant.as_str())
        .fetch_one(self.pool())
        .await?;
        if !known {
            return Ok(None);
        }
        let rows = sqlx::query(
            "SELECT id, event_type, run_id, gate_key, state, attempts, app.ms(next_at) AS next, last_status,
                    last_error, app.ms(occurred_at) AS occurred
               FROM app.webhook_deliveries WHERE webhook_id = $1 AND ($2::text IS NULL OR state = $2)
              ORDER BY occurred_at DESC, id LIMIT $3",
        )
        .bind(webhook.as_str())
        .bind(state.map(DeliveryState::as_str))
        .bind(limit)
        .fetch_all(self.pool())
        .await?;
        rows.iter().map(delivery).collect::<Result<_>>().map(Some)
    }

    /// Sends a delivery again that arrived or was given up: a new round. `None` where there is no such
    /// one, `false` where it is on its way anyway or its webhook is gone.
    pub async fn delivery_replay(
        self,
        tenant: &TenantId,
        webhook: &WebhookId,
        delivery: &DeliveryId,
        audit: &Audit<'_>,
    ) -> Result<Option<bool>> {
        let mut tx = self.pool().begin().await?;
        let found: Option<bool> = sqlx::query_scalar(
            "SELECT d.state <> 'pending' AND w.removed_at IS NULL
               FROM app.webhook_deliveries d JOIN app.webhooks w ON w.id = d.webhook_id
              WHERE d.id = $1 AND d.webhook_id = $2 AND w.tenant_id = $3 FOR UPDATE OF d",
        )
        .bind(delivery.as_str())
        .bind(webhook.as_str())
        .bind(tenant.as_str())
        .fetch_optional(&mut *tx)
        .await?;
        if found != Some(true) {
            return Ok(found);
        }
        sqlx::query(
            "UPDATE app.webhook_deliveries SET state = 'pending', next_at = clock_timestamp(), ended_at = NULL,
                    round_start = attempts
              WHERE id = $1",
        )
        .bind(delivery.as_str())
        .execute(&mut *tx)
        .await?;
        crate::audit::append(&mut tx, audit).await?;
        sqlx::query("SELECT pg_notify('cofferdam', 'd:deliveries')").execute(&mut *tx).await?;
        tx.commit().await?;
        Ok(Some(true))
    }

    /// Takes at most `limit` of what is due and `each` of one webhook, none of the `busy` ones, so that no
    /// other sender does for a while.
    pub async fn deliveries_claim(self, limit: i64, each: i64, busy: &[&str]) -> Result<Vec<Due>> {
        let rows = sqlx::query(
            "WITH due AS (
               SELECT id, row_number() OVER (PARTITION BY webhook_id ORDER BY next_at, id) AS n
                 FROM app.webhook_deliveries
                WHERE state = 'pending' AND next_at <= clock_timestamp() AND NOT webhook_id = ANY ($4)),
             picked AS (
               SELECT d.id FROM app.webhook_deliveries d JOIN due ON due.id = d.id
                WHERE due.n <= $1 AND d.state = 'pending' AND d.next_at <= clock_timestamp()
                ORDER BY d.next_at LIMIT $2 FOR UPDATE OF d SKIP LOCKED)
             UPDATE app.webhook_deliveries d
                SET attempts = d.attempts + 1,
                    next_at = clock_timestamp() + make_interval(secs => $3::float8 / 1000)
               FROM picked, app.webhooks w
              WHERE d.id = picked.id AND w.id = d.webhook_id
             RETURNING d.id, d.webhook_id, w.url, d.attempts, d.attempts - d.round_start AS of_round,
                       d.event_type, d.run_id, d.workflow_id, d.gate_key, d.topic, d.plan_digest,
                       app.ms(d.gate_created_at) AS gate_created, app.ms(d.deadline_at) AS deadline,
                       d.escalation_workflow_id, d.decision, d.asked_name, d.intent_id, d.run_status, d.recipe_id,
                       d.recipe_v, app.ms(d.finished_at) AS finished,
                       to_char(d.occurred_at AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"') AS timestamp",
        )
        .bind(each)
        .bind(limit)
        .bind(LEASE_MS)
        .bind(busy)
        .fetch_all(self.pool())
        .await?;
        rows.iter()
            .map(|row| {
                Ok(Due {
                    id: id("webhook_deliveries.id", row.try_get("id")?)?,
                    webhook: id("webhook_deliveries.webhook_id", row.try_get("webhook_id")?)?,
                    url: row.try_get("url")?,
                    event: told(row)?,
                    attempt: row.try_get("attempts")?,
                    of_round: row.try_get("of_round")?,
                })
            })
            .collect()
    }

    /// In how many ms the next one is due that is none of the `busy` webhooks', where any is: 0 for one
    /// that is due already.
    pub async fn deliveries_next_ms(self, busy: &[&str]) -> Result<Option<u64>> {
        let ms: Option<i64> = sqlx::query_scalar(
            "SELECT app.ms(min(next_at)) - app.ms(clock_timestamp()) FROM app.webhook_deliveries
              WHERE state = 'pending' AND NOT webhook_id = ANY ($1)",
        )
        .bind(busy)
        .fetch_one(self.pool())
        .await?;
        Ok(ms.map(|ms| u64::try_from(ms).unwrap_or(0)))
    }

    /// Records an attempt and moves its delivery, together. Nothing moves where another attempt was
    /// begun meanwhile: that one's end counts.
    pub async fn delivery_attempted(self, due: &Due, end: &DeliveryAttempt<'_>) -> Result<()> {
        let (state, after_ms) = match end.next {
            Next::Delivered => ("delivered", None),
            Next::Dead => ("dead", None),
            Next::Retry { after_ms } => ("pending", i64::try_from(after_ms).ok()),
        };
        sqlx::query(
            "WITH a AS (
               INSERT INTO app.webhook_attempts (delivery_id, attempt, ok, status, error, wall_ms, worker)
               VALUES ($1, $2, $3 = 'delivered', $5, $6, $7, $8) ON CONFLICT DO NOTHING)
             UPDATE app.webhook_deliveries
                SET state = $3, last_status = $5, last_error = $6,
                    next_at = clock_timestamp() + make_interval(secs => $4::float8 / 1000),
                    ended_at = CASE WHEN $3 = 'pending' THEN NULL ELSE clock_timestamp() END
              WHERE id = $1 AND attempts = $2 AND state = 'pending'",
        )
        .bind(due.id.as_str())
        .bind(due.attempt)
        .bind(state)
        .bind(after_ms)
        .bind(end.status.map(i32::from))
        .bind(end.error.map(|text| text.chars().take(200).collect::<String>()))
        .bind(i64::try_from(end.wall_ms).unwrap_or(i64::MAX))
        .bind(end.worker)
        .execute(self.pool())
        .await?;
        Ok(())
    }
}

/// What a row of the outbox tells, as it was when it happened.
fn told(row: &PgRow) -> Result<WebhookEvent> {
    let (event, timestamp) = (event_of(row)?, row.try_get("timestamp")?);
    let (run_id, workflow_id) =
        (id("webhook_deliveries.run_id", row.try_get("run_id")?)?, row.try_get("workflow_id")?);
    if event == EventType::RunTerminal {
        let data = RunEventData {
            run_id,
            workflow_id,
            intent_id: id("webhook_deliveries.intent_id", row.try_get("intent_id")?)?,
            status: load(
                "webhook_deliveries.run_status",
                row.try_get::<String, _>("run_status")?.into(),
            )?,
            recipe_ref: RecipeRef {
                id: id("webhook_deliveries.recipe_id", row.try_get("recipe_id")?)?,
                v: row.try_get("recipe_v")?,
            },
            finished_at: row.try_get("finished")?,
        };
        return Ok(WebhookEvent::Run(Box::new(RunEvent { event, timestamp, data })));
    }
    let plan_digest: Option<&str> = row.try_get("plan_digest")?;
    let data = GateEventData {
        run_id,
        workflow_id,
        gate_key: row.try_get("gate_key")?,
        topic: row.try_get("topic")?,
        plan_digest: plan_digest
            .map(|text| id("webhook_deliveries.plan_digest", text))
            .transpose()?,
        created_at: row.try_get("gate_created")?,
        deadline_at: row.try_get("deadline")?,
        escalation_workflow_id: row.try_get("escalation_workflow_id")?,
        decision: row.try_get("decision")?,
        asked_name: row.try_get("asked_name")?,
    };
    Ok(WebhookEvent::Gate(Box::new(GateEvent { event, timestamp, data })))
}

fn delivery(row: &PgRow) -> Result<DeliveryRow> {
    let state: String = row.try_get("state")?;
    Ok(DeliveryRow {
        delivery_id: id("webhook_deliveries.id", row.try_get("id")?)?,
        event: event_of(row)?,
        run_id: id("webhook_deliveries.run_id", row.try_get("run_id")?)?,
        gate_key: row.try_get("gate_key")?,
        state: DeliveryState::parse(&state)
            .ok_or(LedgerError::Row { what: "webhook_deliveries.state", why: state })?,
        attempts: row.try_get("attempts")?,
        next_at: row.try_get("next")?,
        last_status: row.try_get("last_status")?,
        last_error: row.try_get("last_error")?,
        occurred_at: row.try_get("occurred")?,
    })
}
