//! A reply's rows: the gate's lock, what is read under it, and the one write.
//!
//! ```text
//! gate_lock --> read --> (contracts::reply::decide_reply) --> record, commit
//! ```
//! What a reply comes to is decided between the last two, outside this crate. Each line is one turn to the
//! database (the lock: two, the run's before the gate's), since the answerer waits for all of them.

use cofferdam_contracts::consent::Edit;
use cofferdam_contracts::error::Refusal;
use cofferdam_contracts::gate::{Choice, GateMessage, Origin};
use cofferdam_contracts::id::{Digest, GateKey, RunId};
use cofferdam_contracts::reply::{
    GateStage, InteractionOutcome, LockedGate, Outcome, PriorReply, ReplyContext, Vote, Voter,
};
use cofferdam_contracts::retention::Content;
use cofferdam_contracts::tally::{Ballot, Person};
use serde_json::Value;
use sqlx::{Postgres, Row, Transaction};

use super::delegations::{delegated_to, groups_of, link_maker};
use super::{message_text, spec_of};
use crate::erasures::refuse_erased;
use crate::error::{LedgerError, OpResult, Result, id, load};
use crate::failpoint::fail_point;
use crate::families::Gates;
use crate::keys::{KEYLESS, Principal};

/// How the voter of a reply link begins; the rest is the name that it was made for.
const LINK_VOTER: &str = "link:";

/// One reply: its row (i), its vote (v), the consent (p), the message (m), the gate's state (g).
const RECORD: &str = "WITH i AS (
       INSERT INTO app.human_interactions
         (workflow_id, run_id, gate_key, topic, dedupe_key, payload_hash, payload, origin, outcome, key_id, created_at)
       VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, timestamptz 'epoch' + $11 * interval '1 microsecond') RETURNING id),
     v AS (
       INSERT INTO app.gate_votes (interaction_id, run_id, gate_key, voter, authority, delegation_id, choice)
       SELECT id, $2, $3, $10, $12, $13, $14 FROM i WHERE $12::text IS NOT NULL),
     p AS (
       INSERT INTO app.plan_approvals (run_id, intent_id, plan_digest, approved_by, key_id, notes, origin, gate_key,
         round, sandbox_digest, egress_digest, image_digest, budget_digest, parts)
       SELECT run_id, $16, plan_digest, $17, $10, $18, $8, gate_key, round, bindings->>'sandbox', bindings->>'egress',
              bindings->>'image', bindings->>'budget', parts
         FROM app.human_gates WHERE $15 AND run_id = $2 AND gate_key = $3
       ON CONFLICT (run_id, round) DO NOTHING RETURNING 1),
     m AS (
       INSERT INTO dbos.notifications (destination_uuid, topic, message, serialization)
       SELECT workflow_uuid, $4, $19, 'rust_serde' FROM dbos.workflow_status
        WHERE $19::text IS NOT NULL AND workflow_uuid = $1),
     g AS (
       UPDATE app.human_gates SET state = 'received', decided_at = clock_timestamp()
        WHERE $20 AND run_id = $2 AND gate_key = $3 AND topic = $4 AND state = 'open')
     SELECT id, (SELECT count(*) FROM p) AS consents,
            CASE WHEN $12::text IS NOT NULL THEN pg_notify('cofferdam', 'g:' || $2) END FROM i";

/// A reply to a gate.
#[derive(Debug, Clone)]
pub struct Reply<'a> {
    /// Key that answers; the key id of a reply link is `link:` and a name.
    pub principal: &'a Principal,
    /// The run or its workflow.
    pub run_or_workflow: &'a str,
    /// Name of the gate in the run.
    pub key: &'a GateKey,
    /// Its topic, where the caller says one.
    pub topic: Option<&'a str>,
    /// Answer as JSON; it must fit the gate's form.
    pub payload: &'a Value,
    /// Equal replies with equal keys are one.
    pub dedupe_key: &'a str,
    /// Source to record for the reply; `external` for a reply link.
    pub origin: Origin,
    /// Who approves, as they say.
    pub approved_by: &'a str,
}

/// An accepted reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplyReceipt {
    /// Run of the gate, also where the caller named a workflow.
    pub run: RunId,
    /// Whether this very reply was there already.
    pub is_replay: bool,
    /// ms since the epoch.
    pub at: i64,
}

/// A gate whose row is locked. Dropped without [`GateLock::record`], it changes nothing.
pub struct GateLock {
    tx: Transaction<'static, Postgres>,
    gate: LockedGate,
    run: RunId,
    workflow: String,
    intent: String,
    key: GateKey,
    now_us: i64,
    /// Only looked at for a caller without a key.
    has_hosts_reach: bool,
}

impl std::fmt::Debug for GateLock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GateLock").field("run", &self.run).field("key", &self.key).finish()
    }
}

impl Gates<'_> {
    /// Locks a gate of the caller's tenant until the lock is dropped.
    ///
    /// # Errors
    /// `not_found` where there is no such run, or no such gate of it; `erased` where the prompt of the run went, of which replies are
    /// a part.
    pub async fn lock(
        self,
        who: &Principal,
        run_or_workflow: &str,
        key: &GateKey,
    ) -> OpResult<GateLock> {
        let mut tx = self.pool().begin().await?;
        // Before the gate, as an erasure does. The next statement sees one that was waited for, and none comes behind it.
        sqlx::query("SELECT FROM app.runs WHERE (id = $1 OR workflow_id = $1) AND tenant_id = $2 FOR KEY SHARE")
            .bind(run_or_workflow)
            .bind(who.tenant.as_str())
            .execute(&mut *tx)
            .await?;
        let row = sqlx::query(
            "SELECT r.id, r.intent_id, app.is_erased(r.id, 'prompt') AS is_erased, ARRAY[r.key_id, i.key_id] AS submitters,
                    g.workflow_id, g.topic, g.state, g.form, g.spec, g.groups, g.inputs,
                    $4 AND app.has_hosts_reach(r.id, r.key_id, i.key_id) AS has_hosts_reach,
                    g.plan_digest IS NOT NULL AS is_for_plan,
                    (extract(epoch FROM g.deadline_at) * 1000000)::bigint AS deadline_us,
                    (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS now_us
               FROM app.runs r
               JOIN app.intents i ON i.id = r.intent_id
               JOIN app.human_gates g ON g.run_id = r.id AND g.gate_key = $3
              WHERE (r.id = $1 OR r.workflow_id = $1) AND r.tenant_id = $2 FOR UPDATE OF g",
        )
        .bind(run_or_workflow)
        .bind(who.tenant.as_str())
        .bind(key.as_str())
        .bind(who.key_id == KEYLESS)
        .fetch_optional(&mut *tx)
        .await?;
        let Some(row) = row else {
            return Err(missing(&mut tx, who, run_or_workflow).await?.into());
        };
        let run: RunId = id("runs.id", row.try_get("id")?)?;
        if row.try_get("is_erased")? {
            refuse_erased(&mut *tx, &run, Some(Content::Prompt)).await?;
        }
        let groups: Vec<String> = row.try_get("groups")?;
        let gate = LockedGate {
            stage: load("human_gates.state", Value::String(row.try_get("state")?))?,
            topic: row.try_get("topic")?,
            spec: spec_of(key, row.try_get("spec")?)?,
            form: row.try_get("form")?,
            inputs: row.try_get("inputs")?,
            groups: groups.iter().map(|g| id("human_gates.groups", g)).collect::<Result<_>>()?,
            submitters: row.try_get("submitters")?,
            is_for_plan: row.try_get("is_for_plan")?,
            deadline_us: row.try_get("deadline_us")?,
        };
        Ok(GateLock {
            gate,
            run,
            workflow: row.try_get("workflow_id")?,
            intent: row.try_get("intent_id")?,
            key: key.clone(),
            now_us: row.try_get("now_us")?,
            has_hosts_reach: row.try_get("has_hosts_reach")?,
            tx,
        })
    }
}

impl GateLock {
    /// State and rules of the gate, as read under the lock.
    #[must_use]
    pub fn gate(&self) -> &LockedGate {
        &self.gate
    }

    /// The database's clock when the gate was locked, microseconds since the epoch: the reply's time.
    #[must_use]
    pub fn now_us(&self) -> i64 {
        self.now_us
    }

    /// A key with the groups that it has now.
    pub async fn person(&mut self, who: &Principal) -> Result<Person> {
        let groups = groups_of(&mut self.tx, &who.key_id).await?;
        Ok(Person { key_id: who.key_id.clone(), roles: who.roles.clone(), groups })
    }

    /// What a reply is decided on, beside the gate.
    pub async fn read(&mut self, reply: &Reply<'_>) -> Result<ReplyContext> {
        let ballots = self.ballots().await?;
        let voter = self.voter(reply).await?;
        let earlier = self.earlier(reply.dedupe_key).await?;
        Ok(ReplyContext { ballots, voter, earlier })
    }

    /// The answers that count so far. Where one decides there is none to count while the gate is open.
    async fn ballots(&mut self) -> Result<Vec<Ballot>> {
        if !self.gate.is_counted() || self.gate.stage != GateStage::Open {
            return Ok(Vec::new());
        }
        let rows = sqlx::query(
            "SELECT voter, authority, choice FROM app.gate_votes WHERE run_id = $1 AND gate_key = $2",
        )
        .bind(self.run.as_str())
        .bind(self.key.as_str())
        .fetch_all(&mut *self.tx)
        .await?;
        rows.iter()
            .map(|row| {
                Ok(Ballot {
                    voter: row.try_get("voter")?,
                    authority: row.try_get("authority")?,
                    choice: load("gate_votes.choice", Value::String(row.try_get("choice")?))?,
                })
            })
            .collect()
    }

    /// Who answers. A gate that asks nobody in particular needs neither groups nor delegations.
    async fn voter(&mut self, reply: &Reply<'_>) -> Result<Voter> {
        let who = reply.principal;
        if self.has_hosts_reach {
            return Ok(Voter::NeedsKey);
        }
        if who.key_id.starts_with(LINK_VOTER) {
            return Ok(Voter::Link(link_maker(&mut self.tx, reply.dedupe_key).await?));
        }
        if self.gate.is_for_everybody() {
            let (key_id, roles) = (who.key_id.clone(), who.roles.clone());
            return Ok(Voter::Key(Person { key_id, roles, groups: Vec::new() }, Vec::new()));
        }
        let person = self.person(who).await?;
        let delegated = delegated_to(&mut self.tx, &who.tenant, &who.key_id).await?;
        Ok(Voter::Key(person, delegated))
    }

    async fn earlier(&mut self, dedupe_key: &str) -> Result<Option<PriorReply>> {
        let row = sqlx::query(
            "SELECT key_id, payload_hash, outcome, app.ms(created_at) AS at FROM app.human_interactions
              WHERE workflow_id = $1 AND gate_key = $2 AND topic = $3 AND dedupe_key = $4",
        )
        .bind(&self.workflow)
        .bind(self.key.as_str())
        .bind(&self.gate.topic)
        .bind(dedupe_key)
        .fetch_optional(&mut *self.tx)
        .await?;
        row.map(|row| {
            let hash: String = row.try_get("payload_hash")?;
            let recorded = Value::String(row.try_get("outcome")?);
            Ok(PriorReply {
                key_id: row.try_get("key_id")?,
                payload_hash: id("human_interactions.payload_hash", &hash)?,
                recorded: load("human_interactions.outcome", recorded)?,
                at: row.try_get("at")?,
            })
        })
        .transpose()
    }

    /// Records what the reply comes to, with everything that follows from it, and lets the gate go.
    pub async fn record(mut self, reply: &Reply<'_>, outcome: &Outcome) -> Result<ReplyReceipt> {
        let (row, at) = match outcome {
            Outcome::Replay { at } => {
                return Ok(ReplyReceipt { run: self.run, is_replay: true, at: *at });
            }
            Outcome::Void { hash, recorded, .. } => {
                fail_point("reply.read");
                let (_, at) = self.insert(reply, hash, *recorded, None).await?;
                self.tx.commit().await?;
                return Ok(ReplyReceipt { run: self.run, is_replay: false, at });
            }
            Outcome::Counts(vote) => {
                fail_point("reply.read");
                self.insert(reply, &vote.hash, vote.recorded(), Some(vote)).await?
            }
        };
        fail_point("reply.recorded");
        if let Outcome::Counts(vote) = outcome {
            self.insert_edits(row, &vote.edits).await?;
        }
        fail_point("reply.edited");
        self.tx.commit().await?;
        fail_point("reply.committed");
        Ok(ReplyReceipt { run: self.run, is_replay: false, at })
    }

    /// The reply and everything that comes with it, in one statement: its row, its vote, and with the
    /// deciding one the gate's state, the consent, which takes over what its gate was opened with, and the
    /// message to the workflow that waits; watchers are notified. The row's id and time.
    async fn insert(
        &mut self,
        reply: &Reply<'_>,
        hash: &Digest,
        recorded: InteractionOutcome,
        vote: Option<&Vote>,
    ) -> Result<(i64, i64)> {
        let at = self.now_us.div_euclid(1_000);
        let message = vote.filter(|vote| vote.wakes).map(|vote| GateMessage {
            payload: Some(reply.payload.clone()),
            payload_hash: Some(vote.hash.clone()),
            at,
            sys: None,
        });
        let message = message.map(|message| message_text(&message)).transpose()?;
        let consents = vote.is_some_and(|vote| vote.consents);
        let row = sqlx::query(RECORD)
            .bind(&self.workflow)
            .bind(self.run.as_str())
            .bind(self.key.as_str())
            .bind(&self.gate.topic)
            .bind(reply.dedupe_key)
            .bind(hash.as_str())
            .bind(reply.payload)
            .bind(reply.origin.as_str())
            .bind(recorded.as_str())
            .bind(&reply.principal.key_id)
            .bind(self.now_us)
            .bind(vote.map(|vote| vote.standing.authority.as_str()))
            .bind(vote.and_then(|vote| vote.standing.delegation))
            .bind(vote.map(|vote| Choice::as_str(vote.choice)))
            .bind(consents)
            .bind(&self.intent)
            .bind(reply.approved_by)
            .bind(vote.and_then(|vote| vote.rationale.as_deref()))
            .bind(message)
            .bind(vote.is_some_and(|vote| vote.decides))
            .fetch_one(&mut *self.tx)
            .await?;
        if consents && row.try_get::<i64, _>("consents")? != 1 {
            return Err(LedgerError::Row {
                what: "plan_approvals",
                why: format!("{} has a consent of an open gate", self.run),
            });
        }
        Ok((row.try_get("id")?, at))
    }

    async fn insert_edits(&mut self, row: i64, edits: &[Edit]) -> Result<()> {
        for (n, edit) in edits.iter().enumerate() {
            sqlx::query(
                "INSERT INTO app.gate_edits (interaction_id, n, run_id, gate_key, op, path, from_value, value)
                 VALUES ($1, $2, $3, $4, $5, $6, $7, $8)",
            )
            .bind(row)
            .bind(i32::try_from(n).unwrap_or(i32::MAX))
            .bind(self.run.as_str())
            .bind(self.key.as_str())
            .bind(&edit.op)
            .bind(&edit.path)
            .bind(&edit.from)
            .bind(&edit.value)
            .execute(&mut *self.tx)
            .await?;
        }
        Ok(())
    }
}

/// Which of the two there is not.
async fn missing(
    conn: &mut sqlx::PgConnection,
    who: &Principal,
    run_or_workflow: &str,
) -> Result<Refusal> {
    let is_run: bool = sqlx::query_scalar(
        "SELECT EXISTS (SELECT 1 FROM app.runs WHERE (id = $1 OR workflow_id = $1) AND tenant_id = $2)",
    )
    .bind(run_or_workflow)
    .bind(who.tenant.as_str())
    .fetch_one(conn)
    .await?;
    Ok(Refusal::not_found(if is_run { "gate" } else { "run" }))
}
