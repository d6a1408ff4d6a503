//! Answering a gate: validate, resolve, check, write, send, in one transaction under the gate's lock.

use cofferdam_contracts::canonical::digest;
use cofferdam_contracts::consent::{Edit, edited};
use cofferdam_contracts::error::{ErrorCode, Refusal, Violation};
use cofferdam_contracts::gate::{Choice, GateMessage, Origin, choice_of};
use cofferdam_contracts::gate_spec::{GateSpec, SelfApproval};
use cofferdam_contracts::id::{Digest, GateKey, GroupId, RunId};
use cofferdam_contracts::schema::Validator;
use cofferdam_contracts::tally::{
    Asked, Ballot, Ineligible, Person, Standing, Tally, standing, tally,
};
use serde_json::Value;
use sqlx::Row;

use super::delegations::{delegated_to, groups_of, link_maker};
use super::{message_text, spec_of};
use crate::Ledger;
use crate::error::{LedgerError, Result, id};
use crate::failpoint::fail_point;
use crate::keys::{KEYLESS, Principal};

/// How the voter of a reply link begins; the rest is the name that it was made for.
const LINK_VOTER: &str = "link:";

/// A reply to a gate.
#[derive(Debug, Clone)]
pub struct Reply<'a> {
    /// Who answers.
    pub principal: &'a Principal,
    /// The run or its workflow.
    pub run_or_workflow: &'a str,
    /// The gate.
    pub key: &'a GateKey,
    /// Its topic, where the caller says one.
    pub topic: Option<&'a str>,
    /// The answer.
    pub payload: &'a Value,
    /// Equal replies with equal keys are one.
    pub dedupe_key: &'a str,
    /// From where.
    pub origin: Origin,
    /// Who approves, as they say.
    pub approved_by: &'a str,
}

/// An accepted reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replied {
    /// Its run.
    pub run: RunId,
    /// Whether this very reply was there already.
    pub is_replay: bool,
    /// ms since the epoch.
    pub at: i64,
}

struct Open {
    run: RunId,
    workflow: String,
    topic: String,
    state: String,
    form: Value,
    spec: GateSpec,
    groups: Vec<GroupId>,
    inputs: Option<Value>,
    is_for_plan: bool,
    late: bool,
    /// The database's clock, microseconds since the epoch: the answer's time.
    now_us: i64,
    intent: String,
    submitters: Vec<String>,
    /// Only looked at for who comes without a key.
    has_hosts_reach: bool,
}

/// A reply that fits the gate's form.
struct Answer {
    choice: Choice,
    rationale: Option<String>,
    hash: Digest,
    edits: Vec<Edit>,
}

impl Ledger {
    /// Answers a gate. Refusals after the gate is decided or late leave a ledger row and nothing else.
    pub async fn gate_reply(&self, reply: &Reply<'_>) -> Result<Replied> {
        let mut tx = self.pool().begin().await?;
        let gate = gate_lock(&mut tx, reply).await?;
        fail_point("reply.locked");
        let ballots = ballots(&mut tx, &gate, reply.key).await?;
        let standing = stands(&mut tx, &gate, reply, &ballots).await?;
        let answer = read(&gate, reply)?;
        if let Some(earlier) = interaction(&mut tx, &gate, reply).await? {
            return replay(&gate, reply, &answer.hash, &earlier);
        }
        if reply.topic.is_some_and(|t| t != gate.topic) && gate.state == "open" {
            let why = format!("the gate's topic is {}", gate.topic);
            return Err(Refusal::new(ErrorCode::TopicMismatch, why).into());
        }
        fail_point("reply.read");
        if let Some(outcome) = refused(&gate, &standing, reply, &ballots) {
            record(&mut tx, &gate, reply, &answer, &Counts::No(outcome)).await?;
            tx.commit().await?;
            return Err(not_waiting(&gate.state, outcome).into());
        }
        let mut all = ballots;
        all.push(Ballot {
            voter: reply.principal.key_id.clone(),
            authority: standing.authority.clone(),
            choice: answer.choice,
        });
        let decides = tally(&all, gate.spec.quorum, gate.spec.veto) != Tally::Open;
        let counts = if decides { Counts::Decides(&standing) } else { Counts::Votes(&standing) };
        let (row, at) = record(&mut tx, &gate, reply, &answer, &counts).await?;
        fail_point("reply.recorded");
        if decides && answer.is_yes_to_the_plan(&gate) {
            edits_insert(&mut tx, &gate, reply.key, row, &answer.edits).await?;
        }
        fail_point("reply.edited");
        tx.commit().await?;
        fail_point("reply.committed");
        Ok(Replied { run: gate.run, is_replay: false, at })
    }
}

impl Ledger {
    /// Whether a link of this key's could answer a gate: its holder speaks with the maker's voice.
    pub async fn gate_link_stands(
        &self,
        maker: &Principal,
        run: &RunId,
        key: &GateKey,
    ) -> Result<()> {
        let reply = Reply {
            principal: maker,
            run_or_workflow: run.as_str(),
            key,
            topic: None,
            payload: &Value::Null,
            dedupe_key: "",
            origin: Origin::Manual,
            approved_by: &maker.key_id,
        };
        let mut tx = self.pool().begin().await?;
        let gate = gate_lock(&mut tx, &reply).await?;
        let groups = groups_of(&mut tx, &maker.key_id).await?;
        let asked = Asked { spec: &gate.spec, groups: &gate.groups, submitters: &gate.submitters };
        let maker = Person { key_id: maker.key_id.clone(), roles: maker.roles.clone(), groups };
        standing(asked, &maker, &[], &[]).map(drop).map_err(|why| {
            let why = format!("a link answers with the voice of the key that makes it: {why}");
            Refusal::new(ErrorCode::Forbidden, why).into()
        })
    }
}

impl Answer {
    /// A task that asks for a name has a gate too, and a yes to that is no consent to a plan.
    fn is_yes_to_the_plan(&self, gate: &Open) -> bool {
        self.choice == Choice::Yes && gate.is_for_plan
    }
}

fn read(gate: &Open, reply: &Reply<'_>) -> Result<Answer> {
    Validator::compile(&gate.form)?.check(reply.payload)?;
    let (choice, rationale) = choice_of(reply.payload)?;
    let empty = Value::Object(serde_json::Map::new());
    let (_, edits) = edited(gate.inputs.as_ref().unwrap_or(&empty), reply.payload);
    if choice == Choice::No && reply.payload.get("edits").is_some() {
        return Err(Refusal::violations(&[Violation {
            instance_path: "/payload/edits".into(),
            message: "edits go with a yes".into(),
        }])
        .into());
    }
    Ok(Answer { choice, rationale, hash: digest(reply.payload)?, edits })
}

/// In whose place the caller answers. A plain gate asks nobody in particular, so nothing is read.
async fn stands(
    conn: &mut sqlx::PgConnection,
    gate: &Open,
    reply: &Reply<'_>,
    ballots: &[Ballot],
) -> Result<Standing> {
    let who = reply.principal;
    if gate.has_hosts_reach {
        let why =
            "a run with the reach of the host's admin waits for a key: name one with --key-file";
        return Err(Refusal::new(ErrorCode::Forbidden, why).into());
    }
    let asked = Asked { spec: &gate.spec, groups: &gate.groups, submitters: &gate.submitters };
    let forbidden = |why: Ineligible| Refusal::new(ErrorCode::Forbidden, why.to_string()).into();
    if who.key_id.starts_with(LINK_VOTER) {
        // Whoever holds a link speaks with its maker's voice: a hundred links are still one vote.
        let maker = link_maker(conn, reply.dedupe_key).await?;
        let maker = maker.ok_or_else(|| forbidden(Ineligible::NotAsked))?;
        return standing(asked, &maker, &[], ballots).map_err(forbidden);
    }
    let plain = gate.groups.is_empty()
        && gate.spec.roles.is_empty()
        && gate.spec.self_approval == SelfApproval::Allow;
    let (groups, delegated) = if plain {
        (Vec::new(), Vec::new())
    } else {
        (groups_of(conn, &who.key_id).await?, delegated_to(conn, &who.tenant, &who.key_id).await?)
    };
    let person = Person { key_id: who.key_id.clone(), roles: who.roles.clone(), groups };
    standing(asked, &person, &delegated, ballots).map_err(forbidden)
}

/// Why an answer is recorded without counting.
fn refused(
    gate: &Open,
    standing: &Standing,
    reply: &Reply<'_>,
    ballots: &[Ballot],
) -> Option<&'static str> {
    let mine = |b: &Ballot| b.voter == reply.principal.key_id || b.authority == standing.authority;
    match gate.state.as_str() {
        "timed_out" => Some("late"),
        "open" if gate.late => Some("late"),
        "open" if ballots.iter().any(mine) => Some("already_voted"),
        "open" => None,
        _ => Some("already_decided"),
    }
}

async fn gate_lock(conn: &mut sqlx::PgConnection, reply: &Reply<'_>) -> Result<Open> {
    let row = sqlx::query(
        "SELECT r.id, r.intent_id, ARRAY[r.key_id, i.key_id] AS submitters,
                g.workflow_id, g.topic, g.state, g.form, g.spec, g.groups, g.inputs,
                $4 AND app.has_hosts_reach(r.id, r.key_id, i.key_id) AS has_hosts_reach,
                g.plan_digest IS NOT NULL AS is_for_plan, clock_timestamp() > g.deadline_at AS late,
                (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS now_us
           FROM app.runs r
           JOIN app.intents i ON i.id = r.intent_id
           JOIN app.human_gates g ON g.run_id = r.id AND g.gate_key = $3
          WHERE (r.id = $1 OR r.workflow_id = $1) AND r.tenant_id = $2 FOR UPDATE OF g",
    )
    .bind(reply.run_or_workflow)
    .bind(reply.principal.tenant.as_str())
    .bind(reply.key.as_str())
    .bind(reply.principal.key_id == KEYLESS)
    .fetch_optional(&mut *conn)
    .await?;
    let Some(row) = row else { return Err(missing(conn, reply).await?.into()) };
    Ok(Open {
        run: id("runs.id", row.try_get("id")?)?,
        workflow: row.try_get("workflow_id")?,
        topic: row.try_get("topic")?,
        state: row.try_get("state")?,
        form: row.try_get("form")?,
        spec: spec_of(reply.key, row.try_get("spec")?)?,
        groups: row
            .try_get::<Vec<String>, _>("groups")?
            .iter()
            .map(|g| id("human_gates.groups", g))
            .collect::<Result<_>>()?,
        inputs: row.try_get("inputs")?,
        is_for_plan: row.try_get("is_for_plan")?,
        late: row.try_get("late")?,
        now_us: row.try_get("now_us")?,
        intent: row.try_get("intent_id")?,
        submitters: row.try_get("submitters")?,
        has_hosts_reach: row.try_get("has_hosts_reach")?,
    })
}

/// Which of the two there is not.
async fn missing(conn: &mut sqlx::PgConnection, reply: &Reply<'_>) -> Result<Refusal> {
    let is_run: bool = sqlx::query_scalar(
        "SELECT EXISTS (SELECT 1 FROM app.runs WHERE (id = $1 OR workflow_id = $1) AND tenant_id = $2)",
    )
    .bind(reply.run_or_workflow)
    .bind(reply.principal.tenant.as_str())
    .fetch_one(conn)
    .await?;
    Ok(Refusal::not_found(if is_run { "gate" } else { "run" }))
}

/// The answers that count so far. Where one decides there is none to count while the gate is open.
async fn ballots(conn: &mut sqlx::PgConnection, gate: &Open, key: &GateKey) -> Result<Vec<Ballot>> {
    if gate.spec.quorum <= 1 || gate.state != "open" {
        return Ok(Vec::new());
    }
    let rows = sqlx::query(
        "SELECT voter, authority, choice FROM app.gate_votes WHERE run_id = $1 AND gate_key = $2",
    )
    .bind(gate.run.as_str())
    .bind(key.as_str())
    .fetch_all(conn)
    .await?;
    rows.iter()
        .map(|row| {
            let said: String = row.try_get("choice")?;
            Ok(Ballot {
                voter: row.try_get("voter")?,
                authority: row.try_get("authority")?,
                choice: crate::error::load("gate_votes.choice", Value::String(said))?,
            })
        })
        .collect()
}

/// An earlier reply with the same dedupe key.
struct Earlier {
    key_id: String,
    payload_hash: String,
    outcome: String,
    at: i64,
}

async fn interaction(
    conn: &mut sqlx::PgConnection,
    gate: &Open,
    reply: &Reply<'_>,
) -> Result<Option<Earlier>> {
    let row = sqlx::query(
        "SELECT key_id, payload_hash, outcome, app.ms(created_at) AS at FROM app.human_interactions
          WHERE workflow_id = $1 AND gate_key = $2 AND topic = $3 AND dedupe_key = $4",
    )
    .bind(&gate.workflow)
    .bind(reply.key.as_str())
    .bind(&gate.topic)
    .bind(reply.dedupe_key)
    .fetch_optional(conn)
    .await?;
    row.map(|row| {
        Ok(Earlier {
            key_id: row.try_get("key_id")?,
            payload_hash: row.try_get("payload_hash")?,
            outcome: row.try_get("outcome")?,
            at: row.try_get("at")?,
        })
    })
    .transpose()
}

fn replay(gate: &Open, reply: &Reply<'_>, hash: &Digest, earlier: &Earlier) -> Result<Replied> {
    let same_topic = reply.topic.is_none_or(|t| t == gate.topic);
    if earlier.payload_hash != hash.as_str() || !same_topic {
        let what = "this dedupe key was used with another payload or topic";
        return Err(Refusal::new(ErrorCode::DedupeConflict, what).into());
    }
    // Where answers are counted, another key's answer is not this one's.
    if gate.spec.quorum > 1 && earlier.key_id != reply.principal.key_id {
        let what = "this dedupe key was used by another key";
        return Err(Refusal::new(ErrorCode::DedupeConflict, what).into());
    }
    if !matches!(earlier.outcome.as_str(), "accepted" | "voted") {
        return Err(not_waiting(&gate.state, &earlier.outcome).into());
    }
    Ok(Replied { run: gate.run.clone(), is_replay: true, at: earlier.at })
}

fn not_waiting(state: &str, outcome: &str) -> Refusal {
    let why = match (outcome, state) {
        ("late", _) => "the gate no longer waits: its deadline has passed",
        ("already_voted", _) => "this key, or whom it answers for, has answered this gate already",
        (_, "canceled") => "the gate no longer waits: its run was canceled",
        _ => "the gate no longer waits: it is decided",
    };
    Refusal::new(ErrorCode::StateConflict, why)
}

/// What an answer comes to.
enum Counts<'a> {
    /// Nothing, and why.
    No(&'static str),
    /// One vote of those that the gate waits for, in this place.
    Votes(&'a Standing),
    /// The one after which it waits no longer.
    Decides(&'a Standing),
}

/// The answer and everything that comes with it, in one statement, since each takes a turn to the
/// database while whoever answers waits: its row, its vote, and with the deciding one the gate's state, the
/// consent, which takes over what its gate was opened with, and the message to whoever waits; whoever
/// watches is told. The row's id and time.
async fn record(
    conn: &mut sqlx::PgConnection,
    gate: &Open,
    reply: &Reply<'_>,
    answer: &Answer,
    counts: &Counts<'_>,
) -> Result<(i64, i64)> {
    let (outcome, vote, decides) = match *counts {
        Counts::No(why) => (why, None, false),
        Counts::Votes(standing) => ("voted", Some(standing), false),
        Counts::Decides(standing) => ("accepted", Some(standing), true),
    };
    let at = gate.now_us.div_euclid(1_000);
    // What a task asks parks no workflow: its worker reads the answer.
    let message = (decides && gate.is_for_plan).then(|| GateMessage {
        payload: Some(reply.payload.clone()),
        payload_hash: Some(answer.hash.clone()),
        at,
        sys: None,
    });
    let message = message.map(|message| message_text(&message)).transpose()?;
    // An edited plan is approved as edited, once it is compiled: by the workflow.
    let approves = decides && answer.is_yes_to_the_plan(gate) && answer.edits.is_empty();
    let row = sqlx::query(
        "WITH i AS (
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
                CASE WHEN $12::text IS NOT NULL THEN pg_notify('cofferdam', 'g:' || $2) END FROM i",
    )
    .bind(&gate.workflow)
    .bind(gate.run.as_str())
    .bind(reply.key.as_str())
    .bind(&gate.topic)
    .bind(reply.dedupe_key)
    .bind(answer.hash.as_str())
    .bind(reply.payload)
    .bind(reply.origin.as_str())
    .bind(outcome)
    .bind(&reply.principal.key_id)
    .bind(gate.now_us)
    .bind(vote.map(|standing| &standing.authority))
    .bind(vote.and_then(|standing| standing.delegation))
    .bind(if answer.choice == Choice::Yes { "yes" } else { "no" })
    .bind(approves)
    .bind(&gate.intent)
    .bind(reply.approved_by)
    .bind(answer.rationale.as_deref())
    .bind(message)
    .bind(decides)
    .fetch_one(conn)
    .await?;
    if approves && row.try_get::<i64, _>("consents")? != 1 {
        return Err(LedgerError::Row {
            what: "plan_approvals",
            why: format!("{} has a consent of an open gate", gate.run),
        });
    }
    Ok((row.try_get("id")?, at))
}

async fn edits_insert(
    conn: &mut sqlx::PgConnection,
    gate: &Open,
    key: &GateKey,
    row: i64,
    edits: &[Edit],
) -> Result<()> {
    for (n, edit) in edits.iter().enumerate() {
        sqlx::query(
            "INSERT INTO app.gate_edits (interaction_id, n, run_id, gate_key, op, path, from_value, value)
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8)",
        )
        .bind(row)
        .bind(i32::try_from(n).unwrap_or(i32::MAX))
        .bind(gate.run.as_str())
        .bind(key.as_str())
        .bind(&edit.op)
        .bind(&edit.path)
        .bind(&edit.from)
        .bind(&edit.value)
        .execute(&mut *conn)
        .await?;
    }
    Ok(())
}
