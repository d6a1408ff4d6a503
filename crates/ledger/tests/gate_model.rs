//! A gate against a pure model of it: open, reply, duplicate, conflict, late, quorum, veto, delegate,
//! end, expire, remind, deadline, escalate, in any order, on a real database. After every step the rows
//! are what the model says, and the answer is the one that it foretold.
//!
//! Prints its seed; `COFFERDAM_TEST_SEED` replays it, `PROPTEST_CASES` says how many.

mod model;

use std::collections::BTreeMap;
use std::time::SystemTime;

use cofferdam_contracts::consent::Facts;
use cofferdam_contracts::error::Refusal;
use cofferdam_contracts::gate::{Origin, plan_form};
use cofferdam_contracts::gate_spec::GateSpec;
use cofferdam_contracts::id::{GateKey, GroupId, RunId, TenantId};
use cofferdam_contracts::key::Role;
use cofferdam_contracts::reply::{
    Answer, GateStage, LockedGate, Outcome, PriorReply, ReplyContext, Voter, decide_reply,
};
use cofferdam_contracts::tally::{ActiveDelegation, Ballot, Person};
use cofferdam_ledger::Ledger;
use cofferdam_ledger::audit::Audit;
use cofferdam_ledger::cluster::Cluster;
use cofferdam_ledger::gates::{Deadline, NewDelegation, NewGate, Reply, ReplyReceipt};
use cofferdam_ledger::keys::{NewKey, Principal};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestRng, TestRunner};
use serde_json::{Value, json};
use sqlx::{Executor, PgPool, Row};

use model::{GATE, Law, Model, Op, PEOPLE, Said, State, foretold, law, op};

struct World {
    ledger: Ledger,
    sql: PgPool,
    tenant: TenantId,
    run: RunId,
    workflow: String,
    key: GateKey,
}

impl World {
    async fn open(&self, spec: &GateSpec) -> (i64, i64) {
        let zero = "0".repeat(64);
        let facts: Facts = serde_json::from_value(json!({"parts": {}, "bindings":
            {"plan": zero, "sandbox": zero, "egress": zero, "image": zero, "budget": zero}}))
        .unwrap();
        let new = NewGate {
            run: &self.run,
            workflow: &self.workflow,
            tenant: &self.tenant,
            key: &self.key,
            topic: "human:approve-plan",
            round: 1,
            spec,
            form: &plan_form(),
            inputs: None,
            facts: &facts,
            ttl_s: 3_600,
        };
        let times = self.ledger.gates().open(&new).await.unwrap();
        (times.created_at, times.deadline_at)
    }

    async fn reply(&self, who: usize, dedupe: u8, yes: bool) -> Said {
        let principal = Principal {
            key_id: PEOPLE[who].0.into(),
            tenant: self.tenant.clone(),
            roles: vec![Role::Approver],
        };
        let payload = json!({"choice": if yes { "yes" } else { "no" }});
        let reply = Reply {
            principal: &principal,
            run_or_workflow: self.run.as_str(),
            key: &self.key,
            topic: None,
            payload: &payload,
            dedupe_key: &format!("d{dedupe}"),
            origin: Origin::Manual,
            approved_by: "a",
        };
        let said = self.answer(&reply).await;
        match said {
            Ok(replied) if replied.is_replay => Said::Replay,
            Ok(_) => Said::Fresh,
            Err(refusal) => Said::Refused(refusal.code),
        }
    }

    /// As `flows` does it: lock, read, decide, record.
    async fn answer(&self, reply: &Reply<'_>) -> Result<ReplyReceipt, Refusal> {
        let held =
            self.ledger.gates().lock(reply.principal, reply.run_or_workflow, reply.key).await;
        let mut held = held.unwrap();
        let seen = held.read(reply).await.unwrap();
        let key_id = &reply.principal.key_id;
        let answer = Answer { key_id, topic: reply.topic, payload: reply.payload };
        let outcome = decide_reply(held.gate(), &seen, answer, held.now_us())?;
        let replied = held.record(reply, &outcome).await.unwrap();
        match outcome {
            Outcome::Void { refusal, .. } => Err(refusal),
            Outcome::Replay { .. } | Outcome::Counts(_) => Ok(replied),
        }
    }

    /// As somebody who turns clocks.
    async fn turn(&self, statement: &'static str) {
        let mut conn = self.sql.acquire().await.unwrap();
        conn.execute("SET session_replication_role = replica").await.unwrap();
        conn.execute(statement).await.unwrap();
        conn.execute("SET session_replication_role = DEFAULT").await.unwrap();
    }

    /// What the rows say, in the model's words.
    async fn rows(&self) -> Value {
        let query = "SELECT jsonb_build_object(
          'state', (SELECT state FROM app.human_gates WHERE run_id = $1),
          'groups', (SELECT to_jsonb(groups) FROM app.human_gates WHERE run_id = $1),
          'votes', (SELECT coalesce(jsonb_agg(jsonb_build_array(voter, authority, choice) ORDER BY interaction_id), '[]')
                      FROM app.gate_votes WHERE run_id = $1),
          'ledger', (SELECT coalesce(jsonb_object_agg(dedupe_key, jsonb_build_array(key_id, payload->>'choice', outcome)), '{}')
                       FROM app.human_interactions WHERE run_id = $1),
          'approvals', (SELECT count(*) FROM app.plan_approvals WHERE run_id = $1),
          'messages', (SELECT count(*) FROM dbos.notifications WHERE destination_uuid = $2),
          'escalations', (SELECT count(*) FROM dbos.workflow_status WHERE workflow_uuid = 'esc:' || $2 || ':approve-plan'),
          'escalated', (SELECT count(*) FROM app.gate_journal WHERE run_id = $1 AND event = 'escalated'),
          'reminders', (SELECT count(*) FROM app.gate_journal WHERE run_id = $1 AND event = 'reminded'))";
        let row = sqlx::query(query)
            .bind(self.run.as_str())
            .bind(&self.workflow)
            .fetch_one(&self.sql)
            .await
            .unwrap();
        row.get(0)
    }
}

async fn play(world: &World, law: Law, ops: Vec<Op>) -> Result<(), String> {
    let spec = law.spec();
    let times = world.open(&spec).await;
    let mut m = Model::new(law);
    for (n, op) in ops.iter().enumerate() {
        step(world, &mut m, &spec, times, op)
            .await
            .map_err(|why| format!("step {n} {op:?}: {why}"))?;
        let (rows, want) = (world.rows().await, foretold(&m));
        if rows != want {
            return Err(format!("step {n} {op:?}:\nrows  {rows}\nmodel {want}"));
        }
    }
    Ok(())
}

async fn step(
    world: &World,
    m: &mut Model,
    spec: &GateSpec,
    times: (i64, i64),
    op: &Op,
) -> Result<(), String> {
    let ledger = &world.ledger;
    let differ = |got: &dyn std::fmt::Debug, want: &dyn std::fmt::Debug| {
        let (got, want) = (format!("{got:?}"), format!("{want:?}"));
        if got == want { Ok(()) } else { Err(format!("said {got}, the model {want}")) }
    };
    match op {
        Op::Reply { who, dedupe, yes } => {
            let want = m.reply(*who, *dedupe, *yes);
            return differ(&world.reply(*who, *dedupe, *yes).await, &want);
        }
        Op::Delegate { from, to } if from == to => {}
        Op::Delegate { from, to } => {
            let new = NewDelegation {
                tenant: &world.tenant,
                from: PEOPLE[*from].0,
                to: PEOPLE[*to].0,
                group: None,
                ttl_s: 3_600,
                reason: "",
            };
            let made = ledger.delegations().create(&new).await.map_err(|e| e.to_string())?;
            m.delegations.push((made.id, *from, *to, true));
        }
        Op::End { nth } => {
            let Some(d) = m.delegations.iter_mut().filter(|d| d.3).nth(*nth) else { return Ok(()) };
            d.3 = false;
            let by = PEOPLE[d.1].0;
            ledger
                .delegations()
                .end(&world.tenant, d.0, by, false)
                .await
                .map_err(|e| e.to_string())?;
        }
        Op::Expire => {
            world.turn("UPDATE app.gate_delegations SET created_at = created_at - interval '2 hours', expires_at = expires_at - interval '2 hours'").await;
            m.delegations.iter_mut().for_each(|d| d.3 = false);
        }
        Op::DeadlinePasses => {
            world.turn("UPDATE app.human_gates SET deadline_at = clock_timestamp() - interval '1 second' WHERE state = 'open'").await;
            m.late = m.late || m.state == State::Open;
        }
        Op::TimeOut => {
            let topic = "human:approve-plan";
            let over = ledger
                .gates()
                .time_out(&world.run, &world.workflow, &world.key, topic, 3_600)
                .await
                .map_err(|e| e.to_string())?;
            let over = match over {
                Deadline::Answered => "answered",
                Deadline::Waits(_) => "waits",
                Deadline::Over(silence) if silence == spec.on_timeout.then => "over",
                Deadline::Over(_) => "over, against the recipe",
            };
            return differ(&over, &m.time_out());
        }
        Op::Escalate if m.escalated => {
            ledger
                .gates()
                .escalate(&world.workflow, &world.key)
                .await
                .map_err(|e| e.to_string())?;
            m.escalate();
        }
        Op::Escalate => {}
        Op::Remind { n } => {
            ledger.gates().remind(&world.run, &world.key, *n).await.map_err(|e| e.to_string())?;
            if m.state == State::Open && !m.reminders.contains(n) {
                m.reminders.push(*n);
            }
        }
        Op::OpenAgain => {
            let (created, deadline) = world.open(spec).await;
            if created != times.0 || (!m.late && !m.escalated && deadline != times.1) {
                return Err("a gate was opened twice".into());
            }
        }
    }
    Ok(())
}

/// A fresh run and a gate key's world of it.
async fn world(ledger: &Ledger, sql: &PgPool, n: u64) -> World {
    let hex = format!("{n:032x}");
    let setup = format!(
        "INSERT INTO app.intents (id, tenant_id, goal, inputs, constraints, key_id, origin)
           VALUES ('it_{hex}', 'acme', 'g', '{{}}', '{{}}', 'k0', 'manual');
         INSERT INTO app.runs (id, intent_id, workflow_id, tenant_id, status, execution_mode, recipe_id, recipe_v, recipe_hash,
           partition_key, priority, app_version, origin, key_id)
           VALUES ('rn_{hex}', 'it_{hex}', 'it_{hex}', 'acme', 'running', 'LOCAL_NATIVE', 'r', '1', repeat('0', 64),
             'acme', 1, 'v', 'manual', 'k0');
         SELECT app.enqueue('it_{hex}', 'run', 'null', 'intentQ', NULL, 1, NULL, 'v', NULL, 0)"
    );
    sqlx::raw_sql(sqlx::AssertSqlSafe(setup)).execute(sql).await.unwrap();
    World {
        ledger: ledger.clone(),
        sql: sql.clone(),
        tenant: TenantId::parse("acme").unwrap(),
        run: RunId::parse(&format!("rn_{hex}")).unwrap(),
        workflow: format!("it_{hex}"),
        key: GateKey::parse(GATE).unwrap(),
    }
}

/// A gate in memory: what the ledger would have, and the decision over it.
struct Rows {
    gate: LockedGate,
    ballots: Vec<Ballot>,
    delegations: Vec<(i64, usize, usize, bool)>,
    earlier: BTreeMap<u8, PriorReply>,
}

impl Rows {
    fn new(law: &Law) -> Self {
        let spec = law.spec();
        let gate = LockedGate {
            stage: GateStage::Open,
            topic: "human:approve-plan".into(),
            groups: spec.group.iter().cloned().collect(),
            spec,
            form: plan_form(),
            inputs: None,
            submitters: vec!["k0".into()],
            is_for_plan: true,
            deadline_us: 10,
        };
        Self { gate, ballots: vec![], delegations: vec![], earlier: BTreeMap::new() }
    }

    fn reply(&mut self, who: usize, dedupe: u8, yes: bool, late: bool) -> Said {
        let person = |n: usize| Person {
            key_id: PEOPLE[n].0.into(),
            roles: vec![Role::Approver],
            groups: GroupId::parse(PEOPLE[n].1).into_iter().collect(),
        };
        let lent = self.delegations.iter().filter(|d| d.3 && d.2 == who);
        let lent =
            lent.map(|d| ActiveDelegation { id: d.0, from: person(d.1), group: None }).collect();
        let is_open = self.gate.stage == GateStage::Open;
        let counts = self.gate.is_counted() && is_open;
        let seen = ReplyContext {
            ballots: if counts { self.ballots.clone() } else { vec![] },
            voter: Voter::Key(person(who), lent),
            earlier: self.earlier.get(&dedupe).cloned(),
        };
        let payload = json!({"choice": if yes { "yes" } else { "no" }});
        let answer = Answer { key_id: PEOPLE[who].0, topic: None, payload: &payload };
        let now_us = if late { 11 } else { 10 };
        let (hash, recorded, said) = match decide_reply(&self.gate, &seen, answer, now_us) {
            Ok(Outcome::Replay { .. }) => return Said::Replay,
            Err(refusal) => return Said::Refused(refusal.code),
            Ok(Outcome::Void { hash, recorded, refusal }) => {
                (hash, recorded, Said::Refused(refusal.code))
            }
            Ok(Outcome::Counts(vote)) => {
                let recorded = vote.recorded();
                if vote.decides {
                    self.gate.stage = GateStage::Received;
                }
                self.ballots.push(Ballot {
                    voter: PEOPLE[who].0.into(),
                    authority: vote.standing.authority,
                    choice: vote.choice,
                });
                (vote.hash, recorded, Said::Fresh)
            }
        };
        let key_id = PEOPLE[who].0.into();
        self.earlier.insert(dedupe, PriorReply { key_id, payload_hash: hash, recorded, at: 1 });
        said
    }
}

/// The pure decision by itself, thousands of times in the time that the database takes for a few.
#[test]
fn the_decision_alone_does_what_the_model_does() {
    let mut runner = runner("the_decision_alone_does_what_the_model_does", 2_000);
    let outcome = runner.run(&(law(), prop::collection::vec(op(), 1..40)), |(law, ops)| {
        let (mut rows, mut m) = (Rows::new(&law), Model::new(law));
        for (n, op) in ops.iter().enumerate() {
            match op {
                Op::Reply { who, dedupe, yes } => {
                    let said = rows.reply(*who, *dedupe, *yes, m.late);
                    let want = m.reply(*who, *dedupe, *yes);
                    prop_assert_eq!(said, want, "step {} {:?}", n, op);
                    let received = matches!(m.state, State::Received(_));
                    prop_assert_eq!(rows.gate.stage == GateStage::Received, received);
                    prop_assert_eq!(rows.ballots.len(), m.votes.len());
                }
                Op::Delegate { from, to } if from != to => {
                    let lent = (i64::try_from(n).unwrap(), *from, *to, true);
                    rows.delegations.push(lent);
                    m.delegations.push(lent);
                }
                Op::End { nth } => {
                    for all in [&mut rows.delegations, &mut m.delegations] {
                        all.iter_mut()
                            .filter(|d| d.3)
                            .nth(*nth)
                            .into_iter()
                            .for_each(|d| d.3 = false);
                    }
                }
                Op::Expire => {
                    for all in [&mut rows.delegations, &mut m.delegations] {
                        all.iter_mut().for_each(|d| d.3 = false);
                    }
                }
                Op::DeadlinePasses => m.late = m.late || m.state == State::Open,
                Op::TimeOut => {
                    m.time_out();
                    if m.state == State::TimedOut {
                        rows.gate.stage = GateStage::TimedOut;
                    }
                }
                Op::Escalate if m.escalated => {
                    m.escalate();
                    let leads = GroupId::parse("leads").unwrap();
                    if m.widened && !rows.gate.groups.contains(&leads) {
                        rows.gate.groups.push(leads);
                    }
                }
                _ => {}
            }
        }
        Ok(())
    });
    outcome.unwrap();
}

fn seed() -> u64 {
    let given = std::env::var("COFFERDAM_TEST_SEED").ok().and_then(|t| t.parse().ok());
    given.unwrap_or_else(|| {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
        u64::from(now.subsec_nanos()) ^ now.as_secs()
    })
}

/// A runner that prints how to replay it. `cases` unless `PROPTEST_CASES` says otherwise.
fn runner(test: &str, cases: u32) -> TestRunner {
    let seed = seed();
    eprintln!("{test}: replay with COFFERDAM_TEST_SEED={seed}");
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|t| t.parse().ok()).unwrap_or(cases);
    let config =
        Config { cases, failure_persistence: None, max_shrink_iters: 200, ..Config::default() };
    TestRunner::new_with_rng(config, rng)
}

#[test]
fn a_gate_does_what_its_model_does_whatever_happens_to_it() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let state = tempfile::tempdir().unwrap();
    let (cluster, ledger, sql) = runtime.block_on(async {
        let cluster = Cluster::start(state.path()).await.unwrap();
        let ledger = Ledger::connect(&cluster.url()).await.unwrap();
        ledger.migrate().await.unwrap();
        let sql = PgPool::connect(&cluster.superuser_url()).await.unwrap();
        let tenant = TenantId::parse("acme").unwrap();
        for (key, group) in PEOPLE {
            let groups: Vec<GroupId> = GroupId::parse(group).into_iter().collect();
            let roles = &[Role::Approver];
            let (key_id, tenant) = (key, &tenant);
            let new = NewKey {
                key_id,
                secret: key,
                tenant,
                roles,
                groups: &groups,
                label: None,
                state_dir: None,
            };
            let (op, target, actor) = ("key.create", key, "host");
            let audit = Audit { tenant, key_id, actor, op, target, reason: "", detail: None };
            ledger.keys().create(&new, &audit).await.unwrap();
        }
        (cluster, ledger, sql)
    });
    let mut runner = runner("a_gate_does_what_its_model_does_whatever_happens_to_it", 48);
    let count = std::cell::Cell::new(0_u64);
    let outcome = runner.run(&(law(), prop::collection::vec(op(), 1..30)), |(law, ops)| {
        count.set(count.get() + 1);
        runtime.block_on(async {
            // Only this case's delegations are anybody's.
            sqlx::raw_sql(
                "TRUNCATE app.gate_delegations, app.gate_delegation_ends, app.gate_votes",
            )
            .execute(&sql)
            .await
            .unwrap();
            let world = world(&ledger, &sql, count.get()).await;
            play(&world, law, ops).await.map_err(TestCaseError::fail)
        })
    });
    runtime.block_on(async {
        sql.close().await;
        ledger.close().await;
        cluster.stop().await.unwrap();
    });
    outcome.unwrap();
}
