//! Erasures beside what else is written of the run, and what they leave in places that few runs reach.

use std::collections::BTreeSet;

use cofferdam_contracts::error::ErrorCode;
use cofferdam_contracts::id::{Digest, GateKey, RunId, TenantId, WorkflowId};
use cofferdam_contracts::retention::{Erasable, ErasureTotals, Retention};
use cofferdam_ledger::audit::Audit;
use cofferdam_ledger::error::{OpError, OpResult};
use cofferdam_ledger::keys::Principal;
use sqlx::{AssertSqlSafe, Executor};

use crate::begin::{OneRun, one_run, waiting};

const RUN: &str = "rn_00000000000000000000000000000001";
const FORK: &str = "rn_00000000000000000000000000000002";
const WORKFLOW: &str = "it_00000000000000000000000000000001";
const FORK_WORKFLOW: &str = "it_00000000000000000000000000000001.f1";

/// What no row may hold once it is erased.
const MARK: &str = "zq-marker";

const ENDS: &str = "
  UPDATE app.sbx_runs SET response = '{\"exit\": 0, \"said\": \"zq-marker\"}', err_code = 'NONE', finished_at = now() WHERE response IS NULL;
  UPDATE app.runs SET status = 'failed', finished_at = now() WHERE finished_at IS NULL;
  UPDATE dbos.workflow_status SET status = 'ERROR'";

/// A fork of the run, at work.
const FORKS: &str = "INSERT INTO app.runs
  SELECT (jsonb_populate_record(r, jsonb_build_object('id', 'rn_00000000000000000000000000000002', 'retry_of', r.id,
            'workflow_id', r.workflow_id || '.f1', 'status', 'running', 'finished_at', NULL))).* FROM app.runs r";

async fn exec(one: &OneRun, text: &str) {
    sqlx::raw_sql(AssertSqlSafe(text.to_owned())).execute(&one.sql).await.unwrap();
}

async fn number(one: &OneRun, query: &str) -> i64 {
    sqlx::query_scalar(AssertSqlSafe(query.to_owned())).fetch_one(&one.sql).await.unwrap()
}

async fn text(one: &OneRun, query: &str) -> String {
    sqlx::query_scalar(AssertSqlSafe(query.to_owned())).fetch_one(&one.sql).await.unwrap()
}

/// A run that failed and is at rest.
async fn ended() -> OneRun {
    let one = one_run().await;
    one.workflow_add(WORKFLOW).await;
    exec(&one, ENDS).await;
    one
}

fn who() -> Principal {
    let tenant = TenantId::parse("acme").unwrap();
    Principal { key_id: "k0".to_owned(), tenant, roles: Vec::new() }
}

async fn erase(one: &OneRun, run: &str, what: Erasable) -> OpResult<ErasureTotals> {
    let who = who();
    let audit = Audit { reason: "its author asked", ..Audit::by(&who, "erase", run) };
    one.ledger.erasures().erase(&RunId::parse(run).unwrap(), what, &audit).await
}

#[track_caller]
fn refused<T: std::fmt::Debug>(answer: OpResult<T>) -> ErrorCode {
    match answer {
        Err(OpError::Refused(refusal)) => refusal.code,
        other => panic!("it is not refused: {other:?}"),
    }
}

/// No row of the proof's, once its run is erased.
async fn whole(one: &OneRun) {
    for proof in [
        include_str!("../proofs/erasures_are_whole.sql"),
        include_str!("../proofs/content_is_gone_on_record.sql"),
        include_str!("../proofs/cache_bases_are_of_their_source.sql"),
    ] {
        let rows = sqlx::query(proof).fetch_all(&one.sql).await.unwrap();
        assert!(rows.is_empty(), "{proof}: {} rows", rows.len());
    }
}

/// Both contents of the run, by a transaction that is not committed yet.
const ERASES: &str =
    "SELECT runs FROM app.erase_runs(ARRAY[$1], ARRAY[$1], 'asked', 'k0', 'why', 'manual')";

#[tokio::test(flavor = "multi_thread")]
async fn a_retry_and_a_resumption_that_meet_an_erasure_find_it() {
    for is_resumed in [false, true] {
        let one = ended().await;
        if is_resumed {
            exec(&one, "SET cofferdam.repair = 'on'; UPDATE app.runs SET status = 'canceled'; RESET cofferdam.repair;
                        UPDATE dbos.workflow_status SET status = 'CANCELLED'").await;
        }
        let mut held = one.sql.begin().await.unwrap();
        let runs: i64 = sqlx::query_scalar(ERASES).bind(RUN).fetch_one(&mut *held).await.unwrap();
        assert_eq!(runs, 1);
        let who = who();
        let audit = Audit { reason: "again", ..Audit::by(&who, "retry", WORKFLOW) };
        let again = async {
            if is_resumed {
                one.ledger.ops().resume(&WorkflowId::parse(WORKFLOW).unwrap(), &audit).await
            } else {
                one.ledger.runs().retry(&RunId::parse(RUN).unwrap(), &audit).await.map(|_| ())
            }
        };
        let release = async {
            waiting(&one.sql, 1).await;
            held.commit().await.unwrap();
        };
        assert_eq!(refused(tokio::join!(again, release).0), ErrorCode::Erased);
        let open = "SELECT count(*) FROM app.runs WHERE NOT app.is_over(status)";
        assert_eq!(number(&one, open).await, 0);
        let direct = "SET cofferdam.repair = 'on'; UPDATE app.runs SET status = 'repairing'";
        let mut conn = one.sql.acquire().await.unwrap();
        let by_hand = conn.execute(direct).await.unwrap_err();
        assert!(by_hand.to_string().contains("does not go on"), "{by_hand}");
        drop(conn);
        one.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_reply_that_meets_an_erasure_writes_nothing() {
    let one = ended().await;
    exec(
        &one,
        "INSERT INTO app.human_gates (run_id, workflow_id, gate_key, topic, tenant_id, state, form, spec, parts, inputs, ttl_s, deadline_at)
         SELECT id, workflow_id, 'approve-plan', 'human:approve-plan', 'acme', 'timed_out', '{\"a\": \"zq-marker\"}', NULL, '{}', '{}', 60,
                now() FROM app.runs",
    )
    .await;
    let key = GateKey::parse("approve-plan").unwrap();
    let mut held = one.sql.begin().await.unwrap();
    let _: i64 = sqlx::query_scalar(ERASES).bind(RUN).fetch_one(&mut *held).await.unwrap();
    let release = async {
        waiting(&one.sql, 1).await;
        held.commit().await.unwrap();
    };
    let (who, lock) = (who(), one.ledger.gates());
    let (late, ()) = tokio::join!(lock.lock(&who, RUN, &key), release);
    assert_eq!(refused(late), ErrorCode::Erased);
    whole(&one).await;
    one.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prompt_is_not_erased_beside_a_fork_that_is_made_meanwhile() {
    let one = ended().await;
    let mut held = one.sql.begin().await.unwrap();
    // As `ops::fork` does.
    sqlx::raw_sql("SELECT FROM app.intents FOR SHARE").execute(&mut *held).await.unwrap();
    sqlx::raw_sql(FORKS).execute(&mut *held).await.unwrap();
    let release = async {
        waiting(&one.sql, 1).await;
        held.commit().await.unwrap();
    };
    let (answer, ()) = tokio::join!(erase(&one, RUN, Erasable::Prompt), release);
    assert_eq!(refused(answer), ErrorCode::StateConflict);
    assert_eq!(number(&one, "SELECT count(*) FROM app.erasures").await, 0);
    exec(&one, ENDS).await;
    assert_eq!(erase(&one, RUN, Erasable::Prompt).await.unwrap().runs, 2);
    assert!(text(&one, "SELECT goal FROM app.intents").await.starts_with("erased sha256:"));
    whole(&one).await;
    one.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_output_whose_checkpoints_a_fork_copied_goes_with_the_forks() {
    let one = ended().await;
    exec(&one, FORKS).await;
    one.workflow_add(FORK_WORKFLOW).await;
    exec(&one, "INSERT INTO dbos.operation_outputs (workflow_uuid, function_id, function_name, output, started_at_epoch_ms, completed_at_epoch_ms)
                SELECT w, 1, 'task', '\"zq-marker\"', 5, 6 FROM unnest(ARRAY['it_00000000000000000000000000000001',
                                                                          'it_00000000000000000000000000000001.f1']) w").await;
    exec(&one, ENDS).await;
    assert_eq!(refused(erase(&one, RUN, Erasable::Output).await), ErrorCode::StateConflict);
    let batch = "SELECT runs FROM app.retention_batch(ARRAY['rn_00000000000000000000000000000001'], 'age', 'k0', 'why')";
    assert_eq!(number(&one, batch).await, 0, "a collection leaves it to the fork");
    assert_eq!(number(&one, "SELECT count(*) FROM app.erasures").await, 0);
    assert_eq!(erase(&one, FORK, Erasable::Output).await.unwrap().runs, 1);
    assert_eq!(erase(&one, RUN, Erasable::Output).await.unwrap().runs, 1);
    assert_eq!(number(&one, "SELECT count(*) FROM dbos.operation_outputs").await, 0);
    whole(&one).await;
    one.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_whole_run_takes_the_prompts_of_its_forks_and_not_their_outputs() {
    let one = ended().await;
    exec(&one, FORKS).await;
    exec(&one, "INSERT INTO app.sbx_runs (run_id, step_id, task_key, attempt, task_name, provider, request, origin)
                VALUES ('rn_00000000000000000000000000000002', 'ExecuteST:000', repeat('b', 64), 1, 't', 'container', '{\"v\": \"x\"}', 'manual');
                INSERT INTO app.run_streams (run_id, key, seq, chunk) SELECT task_key, 'stdout', n, 'line ' || n
                  FROM app.sbx_runs, generate_series(0, 2) n").await;
    exec(&one, ENDS).await;
    assert_eq!(erase(&one, RUN, Erasable::Run).await.unwrap().runs, 2);
    let kinds = "SELECT string_agg(run_id || ' ' || content, ',' ORDER BY run_id, content COLLATE \"C\") FROM app.erasures";
    assert_eq!(text(&one, kinds).await, format!("{RUN} output,{RUN} prompt,{FORK} prompt"));
    assert_eq!(
        number(&one, "SELECT count(*) FROM app.run_streams WHERE run_id = repeat('b', 64)").await,
        3
    );
    // Each chunk by its own digest: a run's may be more than one value holds.
    let digests = "SELECT count(*) FROM app.erasures WHERE removed #>> '{streams,sha256}' = encode(sha256(
                     sha256('line 0'::bytea) || sha256('line 1'::bytea) || sha256('line 2'::bytea)), 'hex')";
    assert_eq!(number(&one, digests).await, 1);
    whole(&one).await;
    one.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_whose_erasure_fails_holds_up_no_other_of_its_batch() {
    let one = ended().await;
    exec(
        &one,
        "INSERT INTO app.intents SELECT (jsonb_populate_record(i, '{\"id\": \"it_00000000000000000000000000000002\"}')).* FROM app.intents i;
         INSERT INTO app.runs SELECT (jsonb_populate_record(r, '{\"id\": \"rn_00000000000000000000000000000002\",
           \"intent_id\": \"it_00000000000000000000000000000002\", \"workflow_id\": \"it_00000000000000000000000000000002\"}')).*
           FROM app.runs r;
         CREATE FUNCTION app.too_large() RETURNS trigger LANGUAGE plpgsql AS
           'BEGIN RAISE EXCEPTION ''invalid memory alloc request size'' USING ERRCODE = ''XX000''; END';
         CREATE TRIGGER too_large BEFORE INSERT ON app.erasures FOR EACH ROW
           WHEN (NEW.run_id = 'rn_00000000000000000000000000000001') EXECUTE FUNCTION app.too_large()",
    )
    .await;
    let tenant = TenantId::parse("acme").unwrap();
    let rules = Retention { runs: Some(0), ..Retention::default() };
    let erasures = one.ledger.erasures();
    let due = erasures.due(&tenant, &rules).await.unwrap().unwrap();
    let batch = erasures.collect_runs(&tenant, &due, None, "k0", "rule").await.unwrap();
    assert_eq!(batch.erased.runs, 1);
    let failed: Vec<&str> = batch.failed.iter().map(|(run, _)| run.as_str()).collect();
    assert_eq!(failed, [RUN]);
    assert_eq!(
        number(
            &one,
            "SELECT count(*) FROM app.erasures WHERE run_id = 'rn_00000000000000000000000000000002'"
        )
        .await,
        2
    );
    one.stop().await;
}

/// Every text column of a table of the run that its tasks or its model reached.
#[tokio::test(flavor = "multi_thread")]
async fn texts_of_live_sandboxes_builds_and_calls_go_with_the_output() {
    let one = one_run().await;
    one.workflow_add(WORKFLOW).await;
    exec(
        &one,
        "INSERT INTO app.live_sandboxes (id, tenant_id, run_id, key_id, template, metadata, egress, timeout_ms, origin)
         VALUES (repeat('l', 20), 'acme', 'rn_00000000000000000000000000000001', 'k0', 't', '{\"m\": \"zq-marker\"}', '{}', 1, 'manual');
         INSERT INTO app.templates (id, tenant_id, name, key_id) VALUES (repeat('t', 20), 'acme', 't', 'k0');
         INSERT INTO app.template_builds (id, template_id, tenant_id, key_id, tags, status, live_id)
         VALUES ('00000000-0000-0000-0000-000000000001', repeat('t', 20), 'acme', 'k0', '{default}', 'building', repeat('l', 20));
         INSERT INTO app.template_logs VALUES ('00000000-0000-0000-0000-000000000001', 0, 1, 'info', NULL, 'zq-marker');
         UPDATE app.live_sandboxes SET program_failed_at = now(), program_failed = 'zq-marker';
         UPDATE app.live_sandboxes SET ended_at = now(), end_reason = 'zq-marker'",
    )
    .await;
    exec(&one, ENDS).await;
    assert!(text(&one, "SELECT reason FROM app.template_builds").await.contains(MARK));
    exec(
        &one,
        "ALTER TABLE app.model_calls DROP CONSTRAINT model_calls_sandbox_id_fkey;
         INSERT INTO app.model_calls (op_key, run_id, task_key, sandbox_id, n, tenant_id, protocol, request_hash, request_bytes, limits,
           reserved_tokens, reserved_micros, tokens, micros, outcome, why, ended_at)
         VALUES (repeat('c', 64), 'rn_00000000000000000000000000000001', repeat('a', 64), 'sb00000000000000000001', 1, 'acme',
           'openai-chat', repeat('0', 64), 1, '{}', 0, 0, 0, 0, 'provider_error', 'zq-marker', now());
         INSERT INTO app.human_interactions (workflow_id, run_id, gate_key, topic, dedupe_key, payload_hash, payload, origin, outcome, key_id)
         VALUES ('it_00000000000000000000000000000001', 'rn_00000000000000000000000000000001', 'g', 'human:g', 'd', repeat('0', 64),
           'null', 'manual', 'late', 'k0');
         INSERT INTO app.gate_edits SELECT id, 0, run_id, 'g', 'add', '/x', NULL, 'null' FROM app.human_interactions",
    )
    .await;
    erase(&one, RUN, Erasable::Run).await.unwrap();
    for (table, columns) in [
        ("live_sandboxes", "metadata::text || program_failed || end_reason"),
        ("template_builds", "reason"),
        ("template_logs", "message"),
        ("model_calls", "why"),
    ] {
        let left = text(&one, &format!("SELECT {columns} FROM app.{table}")).await;
        assert!(left.contains("erased sha256:") && !left.contains(MARK), "{table}: {left}");
    }
    // A null of JSON is a value that was written; one of SQL is none.
    let edit = text(&one, "SELECT value #>> '{}' FROM app.gate_edits WHERE from_value IS NULL");
    assert!(edit.await.ends_with("bytes:4"));
    let bytes = text(&one, "SELECT convert_from(app.erased_bytes('\\x00ff'), 'UTF8')").await;
    let digest = text(&one, "SELECT encode(sha256('\\x00ff'::bytea), 'hex')").await;
    assert_eq!(bytes, format!("erased sha256:{digest} bytes:2"));
    whole(&one).await;
    one.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_draft_goes_with_its_last_prompt_and_gives_its_bytes_back() {
    let one = ended().await;
    exec(
        &one,
        "INSERT INTO app.recipes (tenant_id, id) VALUES ('acme', 'r');
         INSERT INTO app.recipe_versions (tenant_id, id, v, hash, status, json)
         VALUES ('acme', 'r', '1', repeat('0', 64), 'draft', jsonb_build_object('text', repeat('zq-marker', 1000)))",
    )
    .await;
    let used = "SELECT coalesce(sum(bytes), 0)::bigint FROM app.blob_usage";
    assert!(number(&one, used).await > 9_000);
    erase(&one, RUN, Erasable::Prompt).await.unwrap();
    assert_eq!(number(&one, "SELECT count(*) FROM app.recipes").await, 0);
    assert_eq!(number(&one, used).await, 0);
    one.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_base_of_a_task_that_was_killed_keeps_its_source() {
    let one = ended().await;
    exec(
        &one,
        "ALTER TABLE app.sbx_runs DISABLE TRIGGER USER;
         UPDATE app.sbx_runs SET request = '{\"sandbox\": {\"repo\": {\"from\": \"https://git.example/a\"}}}';
         ALTER TABLE app.sbx_runs ENABLE TRIGGER USER;
         INSERT INTO app.dependency_cache_index (org_id, repo_id, lock_hash, key, host_id, state_dir, digest, bytes, files, created_by, origin)
         SELECT 'acme', s, repeat('0', 64), encode(sha256(convert_to(concat_ws(E'\n', 'acme', s, repeat('0', 64)), 'UTF8')), 'hex'), 'h', '/s',
                repeat('1', 64), 1, 1, task_key, 'manual' FROM (SELECT task_key, app.cache_source(request) AS s FROM app.sbx_runs) x",
    )
    .await;
    whole(&one).await;
    erase(&one, RUN, Erasable::Run).await.unwrap();
    whole(&one).await;
    one.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_of_a_host_directory_is_not_needed_by_an_erased_run() {
    let one = ended().await;
    exec(
        &one,
        "INSERT INTO app.intent_trees SELECT (jsonb_populate_record(NULL::app.intent_trees, jsonb_build_object('intent_id', id, 'source', '/d',
           'sha256', repeat('1', 64), 'copy', repeat('2', 64), 'host_id', 'h', 'state_dir', '/s', 'entries', 1, 'bytes', 1,
           'is_host_admins', false, 'origin', 'manual', 'created_at', now()))).* FROM app.intents",
    )
    .await;
    let copies: BTreeSet<Digest> = [Digest::parse(&"2".repeat(64)).unwrap()].into();
    assert_eq!(one.ledger.trees().needed(&copies).await.unwrap(), copies, "it may be retried");
    erase(&one, RUN, Erasable::Output).await.unwrap();
    assert!(one.ledger.trees().needed(&copies).await.unwrap().is_empty());
    one.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_removed_schedule_keeps_the_hash_of_its_inputs() {
    let one = one_run().await;
    exec(
        &one,
        "INSERT INTO app.triggers (id, kind, tenant_id, name, key_id, recipe_id, recipe_v, recipe_hash, spec)
         VALUES ('sc_00000000000000000000000000000001', 'schedule', 'acme', 's', 'k0', 'r', '1', repeat('0', 64),
                 '{\"cron\": \"* * * * *\", \"inputs\": {\"word\": \"zq-marker\"}}')",
    )
    .await;
    let inputs = "SELECT (spec -> 'inputs')::text FROM app.triggers";
    exec(&one, "UPDATE app.triggers SET state = 'paused'").await;
    assert!(text(&one, inputs).await.contains(MARK));
    exec(&one, "UPDATE app.triggers SET state = 'removed'").await;
    let left = text(&one, inputs).await;
    assert!(left.contains("erased sha256:") && !left.contains(MARK), "{left}");
    one.stop().await;
}
