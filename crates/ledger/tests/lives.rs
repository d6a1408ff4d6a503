//! The states of long-lived sandboxes: SQL and `contracts::life` say the same of every row and every change, and what is on record
//! follows them.

use cofferdam_contracts::id::{Digest, ExecutorId, LiveId, RunId, SandboxId, SnapshotId, TenantId};
use cofferdam_contracts::life::{Life, LifeRow, LifeState, RunReference, may_follow};
use cofferdam_contracts::live::LiveState;
use cofferdam_contracts::sandbox::Limits;
use cofferdam_contracts::snapshot::SnapshotKind;
use cofferdam_ledger::audit::Audit;
use cofferdam_ledger::live::LiveStart;
use cofferdam_ledger::snapshots::{NewSnapshotFiles, SnapshotForm};
use sqlx::{AssertSqlSafe, PgPool};

use crate::begin::{OneRun, one_run};

/// Runs `rn_0..` of one task each, a live worker, a dead one, and the functions that give a row a shape.
const SETUP: &str = r#"
  INSERT INTO app.executors (id, host_id, pid, app_version, state) VALUES
    ('ex-000000000000000a', 'h', 1, 'v', 'live'), ('ex-000000000000000b', 'h', 2, 'v', 'dead');
  INSERT INTO app.intents (id, tenant_id, goal, inputs, constraints, key_id, origin)
    SELECT 'it_' || lpad(n::text, 32, 'a'), 'acme', 'g', '{}', '{}', 'k', 'manual' FROM generate_series(0, 9) n;
  INSERT INTO app.runs (id, intent_id, workflow_id, tenant_id, status, execution_mode, recipe_id, recipe_v, recipe_hash,
                        partition_key, priority, app_version, origin, key_id)
    SELECT 'rn_' || lpad(n::text, 32, 'a'), 'it_' || lpad(n::text, 32, 'a'), 'it_' || lpad(n::text, 32, 'a'), 'acme', 'running',
           'LOCAL_NATIVE', 'sandbox', '1', repeat('0', 64), 'acme', 1, 'v', 'manual', 'k' FROM generate_series(0, 9) n;
  INSERT INTO app.sbx_runs (run_id, step_id, task_key, attempt, task_name, provider, request, origin, response, err_code)
    SELECT 'rn_' || lpad(n::text, 32, 'a'), 'S', lpad(n::text, 64, '0'), 1, 'hold', 'container', '{}', 'manual',
           CASE WHEN n IN (0, 1, 4, 5) THEN '{}'::jsonb END, CASE WHEN n IN (0, 1, 4, 5) THEN 'NONE' END FROM generate_series(0, 9) n;
  INSERT INTO app.remote_execution_sessions (sandbox_id, task_key, execution_no, run_id, tenant_id, class, host_id, state_dir,
                                             executor_id, state)
    SELECT 'sb' || lpad(n::text, 20, '0'), lpad(n::text, 64, '0'), 1, 'rn_' || lpad(n::text, 32, 'a'), 'acme', 'container', 'h', '/',
           CASE WHEN n >= 8 OR n % 2 = 1 THEN 'ex-000000000000000a' ELSE 'ex-000000000000000b' END, 'EXECUTING'
      FROM unnest(ARRAY[4, 5, 6, 7, 9]) n;
  INSERT INTO app.live_sandboxes (id, tenant_id, run_id, key_id, template, metadata, egress, timeout_ms, origin, dedup)
    VALUES (repeat('l', 20), 'acme', 'rn_' || lpad('7', 32, 'a'), 'k', 'base', '{}', '"none"', 60000, 'manual', 'once');
  CREATE FUNCTION app.shape(p_run text, p_executor text, p_sandbox text, p_is boolean[]) RETURNS void LANGUAGE sql AS $$
    UPDATE app.live_sandboxes SET run_id = p_run,
      started_at = CASE WHEN p_is[1] THEN coalesce(started_at, now()) END, ends_at = CASE WHEN p_is[1] THEN coalesce(ends_at, now()) END,
      token_hash = CASE WHEN p_is[1] THEN coalesce(token_hash, repeat('0', 64)) END,
      executor_id = CASE WHEN p_is[1] THEN coalesce(executor_id, p_executor) END,
      sandbox_id = CASE WHEN p_is[1] THEN coalesce(sandbox_id, p_sandbox) END,
      limits = CASE WHEN p_is[1] THEN coalesce(limits, '{}') END,
      ending_at = CASE WHEN p_is[2] THEN coalesce(ending_at, now()) END,
      paused_at = CASE WHEN p_is[3] THEN coalesce(paused_at, now()) END,
      ended_at = CASE WHEN p_is[4] THEN coalesce(ended_at, now()) END, end_reason = CASE WHEN p_is[4] THEN 'x' END,
      snapshot_id = CASE WHEN p_is[5] THEN repeat('s', 20) END
  $$;
  -- Whether the guard lets a row be changed so; it is changed back.
  CREATE FUNCTION app.tried(p_run text, p_executor text, p_sandbox text, p_bits integer) RETURNS boolean LANGUAGE plpgsql AS $$
  BEGIN
    PERFORM app.shape(p_run, p_executor, p_sandbox,
                      (SELECT array_agg((p_bits >> n) & 1 = 1 ORDER BY n) FROM generate_series(0, 4) n));
    RAISE EXCEPTION 'undone' USING ERRCODE = 'CF000';
  EXCEPTION
    WHEN SQLSTATE 'CF000' THEN RETURN true;
    WHEN restrict_violation THEN RETURN false;
  END $$;
"#;

/// Files that the sandbox may be paused into.
const KEPT: &str = "
  INSERT INTO app.snapshots (id, tenant_id, live_id, run_id, kind, template, place, bytes, sha256, sealed_at, sealed_key, sealed_by,
                             key_id, origin)
    SELECT repeat('s', 20), 'acme', l.id, l.run_id, 'pause', 'base', 'h:/', 1, repeat('0', 64), now(), decode(repeat('00', 60), 'hex'),
           repeat('0', 64), 'k', 'manual' FROM app.live_sandboxes l";

async fn lives() -> OneRun {
    let one = one_run().await;
    say(&one.sql, SETUP).await;
    one
}

async fn say(sql: &PgPool, statements: &str) {
    sqlx::raw_sql(AssertSqlSafe(statements.to_owned())).execute(sql).await.unwrap();
}

async fn text(sql: &PgPool, query: &str) -> String {
    sqlx::query_scalar(AssertSqlSafe(query.to_owned())).fetch_one(sql).await.unwrap()
}

/// `n` is three bits of what is on record of a run beside its row: whether a worker has begun, whether its task has no answer, and
/// whether the worker is alive. 8 is the next life's run.
fn run(n: usize) -> String {
    format!("rn_{n:a>32}")
}

fn life() -> LiveId {
    LiveId::parse(&"l".repeat(20)).unwrap()
}

fn tenant() -> TenantId {
    TenantId::parse("acme").unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn sql_and_contracts_have_one_table_and_read_one_state_from_a_row() {
    let one = lives().await;
    for from in LifeState::ALL {
        for to in LifeState::ALL {
            for life in [Life::First, Life::Later] {
                let query = "SELECT app.live_may_follow($1, $2, $3)";
                let query = sqlx::query_scalar(query).bind(from.as_str()).bind(to.as_str());
                let follows: bool =
                    query.bind(life == Life::Later).fetch_one(&one.sql).await.unwrap();
                assert_eq!(follows, may_follow(*from, *to, life), "{from:?} {to:?} {life:?}");
            }
        }
    }
    for bits in 0..128 {
        let is = |bit: usize| (bits >> bit) & 1 == 1;
        let row = LifeRow {
            has_started: is(0),
            is_to_end: is(1),
            is_paused: is(2),
            has_ended: is(3),
            has_files: false,
            is_begun: is(4),
            is_open: is(5),
            is_held: is(6),
        };
        let mut query = sqlx::query_scalar("SELECT app.live_state($1, $2, $3, $4, $5, $6, $7)");
        for bit in 0..7 {
            query = query.bind(is(bit));
        }
        let state: String = query.fetch_one(&one.sql).await.unwrap();
        assert_eq!(state, row.state().as_str(), "{row:?}");
    }
    one.stop().await;
}

/// Shapes of a row's own columns: started, to end, paused, ended, with files. A paused one has files, by a CHECK.
fn shapes() -> impl Iterator<Item = [bool; 5]> {
    let shape = |bits: usize| [0, 1, 2, 3, 4].map(|bit| (bits >> bit) & 1 == 1);
    (0..32).map(shape).filter(|[_, _, is_paused, _, has_files]| !is_paused || *has_files)
}

fn bits(shape: [bool; 5]) -> i32 {
    shape.into_iter().rev().fold(0, |bits, is| bits * 2 + i32::from(is))
}

fn row([started, to_end, paused, ended, files]: [bool; 5], world: usize) -> LifeRow {
    let is = |bit: usize| (world >> bit) & 1 == 1;
    LifeRow {
        has_started: started,
        is_to_end: to_end,
        is_paused: paused,
        has_ended: ended,
        has_files: files,
        is_begun: is(2),
        is_open: is(1),
        is_held: is(0) && started,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_guard_lets_a_row_change_exactly_as_contracts_say() {
    let one = lives().await;
    say(&one.sql, KEPT).await;
    let (mut steps, mut wrong) = (0, Vec::new());
    for world in 0..8 {
        let executor = ["ex-000000000000000b", "ex-000000000000000a"][world & 1];
        // Of a run without a session, one of another run's.
        let sandbox = format!("sb{:0>20}", if world & 4 == 4 { world } else { 9 });
        for from in shapes() {
            let mut tx = one.sql.begin().await.unwrap();
            sqlx::raw_sql("ALTER TABLE app.live_sandboxes DISABLE TRIGGER USER")
                .execute(&mut *tx)
                .await
                .unwrap();
            for shape in [[false; 5], from] {
                let shaped =
                    sqlx::query("SELECT app.shape($1, $2, $3, $4)").bind(run(world)).bind(executor);
                shaped.bind(&sandbox).bind(shape.to_vec()).execute(&mut *tx).await.unwrap();
            }
            sqlx::raw_sql("ALTER TABLE app.live_sandboxes ENABLE TRIGGER USER")
                .execute(&mut *tx)
                .await
                .unwrap();
            tx.commit().await.unwrap();
            let before = row(from, world);
            for query in [
                "SELECT life FROM app.lives",
                "SELECT app.live_state_of(l) FROM app.live_sandboxes l",
            ] {
                assert_eq!(text(&one.sql, query).await, before.state().as_str(), "{before:?}");
            }
            // The next life's run has an unanswered task, and no worker has begun it.
            let tried = "SELECT array_agg(app.tried(r.run, $2, $3, s.bits) ORDER BY s.n, r.n)
                           FROM unnest($1::text[]) WITH ORDINALITY r(run, n), unnest($4::integer[]) WITH ORDINALITY s(bits, n)";
            let tried = sqlx::query_scalar(tried).bind(vec![run(world), run(8)]).bind(executor);
            let all: Vec<i32> = shapes().map(bits).collect();
            let answers: Vec<bool> =
                tried.bind(&sandbox).bind(all).fetch_one(&one.sql).await.unwrap();
            let runs = [(RunReference::Same, world), (RunReference::Next, 2 + (world & 1))];
            let changes =
                shapes().flat_map(|to| runs.map(|(named, facts)| (row(to, facts), named)));
            assert_eq!(answers.len(), shapes().count() * runs.len());
            for ((after, named), may) in changes.zip(answers) {
                steps += usize::from(may);
                if may != before.may_become(after, named) {
                    wrong.push(format!("{before:?} -> {after:?} {named:?}: SQL says {may}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} differ, as {:#?}", wrong.len(), &wrong[..wrong.len().min(5)]);
    assert!(steps > 100, "{steps}");
    one.stop().await;
}

/// Records what happens to a life of run 7, which has a session, an unanswered task and a live worker.
struct Told<'a>(&'a OneRun);

impl Told<'_> {
    async fn state(&self) -> String {
        text(&self.0.sql, "SELECT life FROM app.lives").await
    }

    async fn shown(&self) -> LiveState {
        self.0.ledger.live().by_id(&tenant(), &life()).await.unwrap().unwrap().state
    }

    async fn start(&self) -> bool {
        let (run, sandbox) = (RunId::parse(&run(7)).unwrap(), format!("sb{:0>20}", 7));
        let start = LiveStart {
            run: &run,
            executor: &ExecutorId::parse("ex-000000000000000a").unwrap(),
            sandbox: &SandboxId::parse(&sandbox).unwrap(),
            token: "t",
            traffic: None,
            tokens_of: "k",
            limits: &Limits::default(),
        };
        self.0.ledger.live().started(&start).await.unwrap().is_some()
    }

    async fn pause(&self) -> bool {
        let digest = Digest::parse(&"0".repeat(64)).unwrap();
        let files = NewSnapshotFiles {
            id: &SnapshotId::parse(&"s".repeat(20)).unwrap(),
            live: &life(),
            run: &RunId::parse(&run(7)).unwrap(),
            kind: SnapshotKind::Pause,
            memory: false,
            name: None,
            place: "h:/",
            bytes: 1,
            form: SnapshotForm::Sealed(&digest),
            sealed_key: &[0; 60],
            sealed_by: &digest,
        };
        self.0.ledger.snapshots().pause(&files, &audit("sandbox.pause", &tenant())).await.unwrap()
    }

    async fn end(&self) -> Option<LifeState> {
        self.0.ledger.live().end(&life(), &audit("sandbox.kill", &tenant())).await.unwrap()
    }

    async fn end_paused(&self) -> bool {
        self.0.ledger.live().end_paused(&life(), &audit("sandbox.kill", &tenant())).await.unwrap()
    }

    async fn answer(&self, run: &str, cause: &str) {
        let answer = format!(
            "UPDATE app.sbx_runs SET response = '{{\"cause\": \"{cause}\"}}', err_code = 'NONE' WHERE run_id = '{run}'"
        );
        say(&self.0.sql, &answer).await;
    }

    /// The next life is requested, as `app.live_resume` writes it.
    async fn next(&self) {
        let next = format!(
            "UPDATE app.live_sandboxes SET run_id = '{}', paused_at = NULL, started_at = NULL, ends_at = NULL, token_hash = NULL,
                    executor_id = NULL, sandbox_id = NULL, limits = NULL",
            run(8)
        );
        say(&self.0.sql, &next).await;
    }

    async fn worker_dies(&self) {
        say(&self.0.sql, "UPDATE app.executors SET state = 'dead', ended_at = now()").await;
    }

    async fn reason(&self) -> String {
        text(&self.0.sql, "SELECT end_reason FROM app.live_sandboxes").await
    }

    async fn kills(&self) -> String {
        text(&self.0.sql, "SELECT count(*)::text FROM app.audit WHERE op = 'sandbox.kill'").await
    }
}

fn audit<'a>(op: &'a str, tenant: &'a TenantId) -> Audit<'a> {
    Audit { tenant, key_id: "k", actor: "k", op, target: "x", reason: "", detail: None }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_lives_pauses_and_ends_as_its_rows_say() {
    let one = lives().await;
    let told = Told(&one);
    assert_eq!(
        (told.state().await.as_str(), told.shown().await),
        ("preparing", LiveState::Starting)
    );
    assert!(told.start().await && told.start().await, "its answer may be lost");
    assert_eq!((told.state().await.as_str(), told.shown().await), ("running", LiveState::Running));
    assert!(told.pause().await && !told.pause().await);
    assert_eq!((told.state().await.as_str(), told.shown().await), ("pausing", LiveState::Paused));
    told.answer(&run(7), "paused").await;
    assert_eq!((told.state().await.as_str(), told.shown().await), ("paused", LiveState::Paused));
    told.next().await;
    assert_eq!(told.state().await, "requested");
    told.answer(&run(8), "no room").await;
    assert_eq!(told.state().await, "paused", "its files are still there");
    assert_eq!(told.end().await, Some(LifeState::Paused));
    assert_eq!((told.state().await.as_str(), told.shown().await), ("ended", LiveState::Ended));
    assert_eq!((told.end().await, told.kills().await.as_str()), (None, "1"));
    one.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_life_whose_worker_is_dead_is_ending_and_nothing_revives_it() {
    let one = lives().await;
    let told = Told(&one);
    assert!(told.start().await);
    assert_eq!(one.ledger.live().running(&tenant()).await.unwrap(), 1);
    told.worker_dies().await;
    assert_eq!((told.state().await.as_str(), told.shown().await), ("ending", LiveState::Ended));
    assert_eq!(one.ledger.live().running(&tenant()).await.unwrap(), 0);
    let run = RunId::parse(&run(7)).unwrap();
    assert!(!told.start().await && !told.pause().await);
    assert_eq!(one.ledger.live().extend(&tenant(), &life(), 1_000, false).await.unwrap(), None);
    assert!(!one.ledger.live().program_failed(&run, "x").await.unwrap());
    assert!(one.ledger.live().holder(&life()).await.unwrap().is_none());
    told.answer(run.as_str(), "its worker was lost").await;
    assert_eq!(
        (told.state().await, told.reason().await),
        ("ended".into(), "its worker was lost".into())
    );
    one.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_worker_starts_nothing_and_a_later_life_stays_paused() {
    let one = lives().await;
    let told = Told(&one);
    say(&one.sql, KEPT).await;
    say(&one.sql, "ALTER TABLE app.live_sandboxes DISABLE TRIGGER USER; UPDATE app.live_sandboxes SET snapshot_id = repeat('s', 20);
         ALTER TABLE app.live_sandboxes ENABLE TRIGGER USER").await;
    told.worker_dies().await;
    assert!(!told.start().await);
    told.answer(&run(7), "its worker was lost").await;
    assert_eq!(told.state().await, "paused");
    one.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_sandbox_whose_wipe_is_pending_can_be_killed() {
    let one = lives().await;
    let told = Told(&one);
    assert!(!told.end_paused().await, "it is not paused");
    assert!(told.start().await && told.pause().await);
    let into = one.ledger.live().paused_into(&tenant(), &life()).await.unwrap().unwrap();
    assert_eq!(into.settles.unwrap().as_str(), run(7));
    assert!(told.end_paused().await && !told.end_paused().await);
    assert_eq!((told.state().await.as_str(), told.shown().await), ("ending", LiveState::Ended));
    assert!(one.ledger.live().paused_into(&tenant(), &life()).await.unwrap().is_none());
    told.answer(&run(7), "paused").await;
    assert_eq!((told.state().await, told.reason().await), ("ended".into(), "killed".into()));
    assert_eq!(told.kills().await, "1");
    one.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kill_on_record_is_before_a_start_and_before_a_pauses_commit() {
    let one = lives().await;
    let told = Told(&one);
    assert!(told.start().await);
    assert_eq!(told.end().await, Some(LifeState::Running));
    assert!(!told.pause().await, "nothing of it is kept");
    let kept = text(&one.sql, "SELECT count(*)::text FROM app.snapshots").await;
    assert_eq!((kept.as_str(), told.state().await.as_str()), ("0", "ending"));
    assert_eq!(one.ledger.live().running(&tenant()).await.unwrap(), 0);
    assert_eq!(one.ledger.live().extend(&tenant(), &life(), 1_000, false).await.unwrap(), None);
    told.answer(&run(7), "killed").await;
    assert_eq!((told.state().await, told.reason().await), ("ended".into(), "killed".into()));
    one.stop().await;
    let one = lives().await;
    let told = Told(&one);
    let due = async || {
        let run = RunId::parse(&run(7)).unwrap();
        one.ledger.live().is_due(&life(), &run).await.unwrap()
    };
    assert!(due().await);
    assert_eq!(told.end().await, Some(LifeState::Preparing));
    assert!(!due().await && !told.start().await);
    told.answer(&run(7), "canceled").await;
    assert_eq!((told.state().await, told.reason().await), ("ended".into(), "canceled".into()));
    one.stop().await;
}

/// Its next life is killed before it began: it has ended with that, and is not paused again.
#[tokio::test(flavor = "multi_thread")]
async fn a_later_life_that_is_killed_before_it_ran_ends_its_sandbox() {
    let one = lives().await;
    let told = Told(&one);
    assert!(told.start().await && told.pause().await);
    told.answer(&run(7), "paused").await;
    told.next().await;
    assert_eq!(told.end().await, Some(LifeState::Requested));
    told.answer(&run(8), "canceled").await;
    assert_eq!((told.state().await, told.reason().await), ("ended".into(), "killed".into()));
    one.stop().await;
}

/// A kill that waits for the commit of the task's answer sees it: the sandbox does not stay paused as one that is to end.
#[tokio::test(flavor = "multi_thread")]
async fn a_kill_beside_the_commit_of_a_pauses_wipe_ends_the_sandbox() {
    let one = lives().await;
    let told = Told(&one);
    assert!(told.start().await && told.pause().await);
    let mut tx = one.sql.begin().await.unwrap();
    let answer = "UPDATE app.sbx_runs SET response = '{}', err_code = 'NONE' WHERE run_id = $1";
    sqlx::query(answer).bind(run(7)).execute(&mut *tx).await.unwrap();
    let commit = async {
        let blocked = "SELECT count(*)::text FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()";
        while text(&one.sql, blocked).await == "0" {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
        tx.commit().await.unwrap();
    };
    let (ended, ()) = tokio::join!(told.end_paused(), commit);
    assert!(ended);
    assert_eq!((told.state().await, told.reason().await), ("ended".into(), "killed".into()));
    one.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_key_of_a_sandbox_that_ran_is_not_given_back() {
    let one = lives().await;
    let told = Told(&one);
    assert!(told.start().await && told.pause().await);
    told.answer(&run(7), "paused").await;
    told.next().await;
    told.answer(&run(8), "no room").await;
    assert_eq!(told.end().await, Some(LifeState::Paused));
    let found = one.ledger.live().by_dedup(&tenant(), "once").await.unwrap().unwrap();
    assert_eq!((found.id, found.started_at), (life(), None));
    let another = format!(
        "INSERT INTO app.live_sandboxes (id, tenant_id, run_id, key_id, template, metadata, egress, timeout_ms, origin, dedup)
         VALUES (repeat('m', 20), 'acme', '{}', 'k', 'base', '{{}}', '\"none\"', 60000, 'manual', 'once')",
        run(9)
    );
    let refused = sqlx::raw_sql(AssertSqlSafe(another)).execute(&one.sql).await.unwrap_err();
    assert!(refused.as_database_error().unwrap().is_unique_violation());
    one.stop().await;
}

/// The beginning of a life is its worker's to claim again; that of one that is paused again is anybody's.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_of_a_life_that_did_not_begin_is_given_back_to_all() {
    let one = lives().await;
    let told = Told(&one);
    let executor = ExecutorId::parse("ex-000000000000000a").unwrap();
    let given_back = async |run: &str| {
        let workflow = run.replace("rn_", "it_");
        say(&one.sql, "DELETE FROM dbos.workflow_status").await;
        one.workflow_add(&workflow).await;
        say(&one.sql, "UPDATE dbos.workflow_status SET executor_id = 'ex-000000000000000a', recovery_attempts = 1").await;
        one.ledger.queues().unclaim(&workflow, &executor).await.unwrap();
        text(&one.sql, "SELECT status || ' ' || recovery_attempts FROM dbos.workflow_status").await
    };
    assert_eq!(given_back(&run(7)).await, "ENQUEUED 0");
    assert!(told.start().await && told.pause().await);
    told.answer(&run(7), "paused").await;
    told.next().await;
    assert_eq!(given_back(&run(8)).await, "ENQUEUED 0");
    told.answer(&run(8), "no room").await;
    assert_eq!(given_back(&run(8)).await, "ENQUEUED 1");
    one.stop().await;
}

/// Kept files are not given up while a life that is to go on from them is on record, whether its task is yet or not.
#[tokio::test(flavor = "multi_thread")]
async fn files_that_a_requested_life_goes_on_from_are_not_given_up() {
    let one = lives().await;
    let told = Told(&one);
    assert!(told.start().await && told.pause().await);
    told.answer(&run(7), "paused").await;
    // Its plan is its workflow's to write, and so is its task.
    say(&one.sql, &format!("ALTER TABLE app.sbx_runs DISABLE TRIGGER USER; DELETE FROM app.sbx_runs WHERE run_id = '{}'", run(8)))
        .await;
    told.next().await;
    let lost = "SELECT app.kept_files_lost(repeat('s', 20), 'missing')::text";
    assert_eq!(
        (text(&one.sql, lost).await.as_str(), told.state().await.as_str()),
        ("false", "requested")
    );
    one.stop().await;
}
