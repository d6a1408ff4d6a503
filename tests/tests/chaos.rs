//! Workers and the server in front of them are killed with -9 at random moments. Nothing is lost,
//! nothing counts twice, nothing stays on the host, and nobody has to mend anything.
//!
//! `make chaos` runs the long form; its seed is printed and replays the choices (not the timing).

use crate::support;

use std::time::{Duration, Instant};

use cofferdam_tests::{Home, Server, text};
use serde_json::{Value, json};
use sqlx::PgPool;
use support::{Dice, assert_proven, assert_wiped, count, texts, until};

const SHIM: &[&str] = &["shim", "--listen", "127.0.0.1:0"];
const WORKER: &[&str] = &["worker"];

/// Waits for takeovers (five seconds each) and for whatever is still queued.
const SETTLE: Duration = Duration::from_secs(180);

/// How much of it.
struct Storm {
    runs: u64,
    tasks: u64,
    kills: u64,
    /// Every so many-th run waits at a gate.
    gated: u64,
    /// Before this kill the second worker is killed for good.
    widowed_at: u64,
    /// Before this kill the server in front is killed too.
    shim_at: u64,
}

/// The fleet: two workers that come and go, and the API in front of them.
struct Fleet<'a> {
    home: &'a Home,
    shim: Server,
    workers: [Option<Server>; 2],
}

impl<'a> Fleet<'a> {
    fn start(home: &'a Home) -> Self {
        let shim = Server::start(home, SHIM, &[]);
        let workers = [(); 2].map(|()| Some(Server::start(home, WORKER, &[])));
        Self { home, shim, workers }
    }

    fn kill(&mut self, which: usize) {
        if let Some(mut worker) = self.workers[which].take() {
            worker.kill();
        }
    }

    fn revive(&mut self, which: usize) {
        self.workers[which] = Some(Server::start(self.home, WORKER, &[]));
    }

    fn kill_shim(&mut self) {
        self.shim.kill();
        self.shim = Server::start(self.home, SHIM, &[]);
    }
}

fn recipe(tasks: u64, gated: bool) -> String {
    let gate = if gated { "  gate: approve-plan\n" } else { "" };
    let id = if gated { "storm-gated" } else { "storm" };
    format!(
        "id: {id}\nv: \"1\"\nform:\n  type: object\n  properties: {{n: {{type: integer}}}}\n\
         plan:\n{gate}  tasks:\n    - name: part-${{item}}\n      each: ${{range({tasks})}}\n      \
         exec: {{run: \"sleep 0.$(( (${{item}} * 7 + ${{form.n}} * 3) % 5 ))5; echo ${{form.n}}-${{item}} | tee out.txt\", timeout: 60s}}\n      \
         artifacts: [out.txt]\n"
    )
}

async fn submit(shim: &Server, tasks: u64, n: u64, gated: bool) -> String {
    let header = shim
        .run_recipe(&recipe(tasks, gated), json!({"n": n}), json!({"runKey": n.to_string()}))
        .await;
    text(&header, "runId")
}

async fn approve(shim: &Server, run: &str) {
    let path = format!("/api/runs/{run}/gates/approve-plan/reply");
    let reply = json!({"payload": {"choice": "yes"}, "dedupeKey": "chaos"});
    let (status, body) = shim.post(&path, &reply).await;
    assert_eq!(status, 200, "{run}: {body}");
}

async fn storm(name: &str, plan: &Storm) {
    let started = Instant::now();
    let mut dice = Dice::new(name);
    let home = Home::new();
    let mut fleet = Fleet::start(&home);
    let sql = fleet.shim.sql().await;
    let mut waiting: Vec<String> = Vec::new();
    let mut submitted = 0;
    for kill in 0..plan.kills {
        if kill == plan.widowed_at {
            fleet.kill(1);
        }
        if kill == plan.shim_at {
            fleet.kill_shim();
        }
        while submitted < plan.runs * (kill + 1) / plan.kills {
            let gated = submitted % plan.gated == 0;
            let run = submit(&fleet.shim, plan.tasks, submitted, gated).await;
            if gated {
                waiting.push(run);
            }
            submitted += 1;
        }
        let victim =
            if kill >= plan.widowed_at { 0 } else { usize::try_from(dice.below(2)).unwrap() };
        until("somebody works", SETTLE, async || {
            count(&sql, "SELECT count(*) FROM app.remote_execution_sessions WHERE ended_at IS NULL")
                .await
                > 0
        })
        .await;
        dice.moment(0, 700).await;
        fleet.kill(victim);
        // A gate that opened earlier is answered at any time, also while nobody is there to hear it. One that has not opened yet may
        // wait for a worker, of which there may be none now.
        if dice.below(2) == 0 && waiting.len() > 1 {
            let (_, header) = fleet.shim.get(&format!("/api/runs/{}", waiting[0])).await;
            if header["status"] == "waiting_input" {
                approve(&fleet.shim, &waiting.remove(0)).await;
            }
        }
        dice.moment(0, 500).await;
        fleet.revive(victim);
    }
    for run in waiting {
        fleet.shim.wait_for(&run, "waiting at its gate", |h| h["status"] == "waiting_input").await;
        approve(&fleet.shim, &run).await;
    }
    eprintln!("{name}: {} kills over, {:?}", plan.kills, started.elapsed());
    until("every run has ended and every session with it", SETTLE, async || {
        count(
            &sql,
            "SELECT (SELECT count(*) FROM app.runs r JOIN dbos.workflow_status w ON w.workflow_uuid = r.workflow_id
                      WHERE r.finished_at IS NULL OR w.status IN ('PENDING', 'ENQUEUED'))
                  + (SELECT count(*) FROM app.remote_execution_sessions WHERE ended_at IS NULL)
                  + (SELECT count(*) FROM app.executors WHERE state = 'live') - 1",
        )
        .await
            == 0
    })
    .await;
    judge(name, plan, &sql).await;
    assert_wiped(&home, &sql).await;
    assert_proven(&home);
    eprintln!("{name}: {:?}", started.elapsed());
}

/// What must hold of the rows, whatever happened.
async fn judge(name: &str, plan: &Storm, sql: &PgPool) {
    let tasks = i64::try_from(plan.runs * plan.tasks).unwrap();
    let failed = texts(
        sql,
        "SELECT r.id || ' ' || r.status || ' ' || coalesce(r.error, '') FROM app.runs r WHERE r.status <> 'succeeded'",
    )
    .await;
    assert!(failed.is_empty(), "{failed:#?}");
    assert_eq!(
        count(sql, "SELECT count(*) FROM app.runs").await,
        i64::try_from(plan.runs).unwrap()
    );
    assert_eq!(
        count(sql, "SELECT count(*) FROM app.sbx_runs WHERE err_code = 'NONE'").await,
        tasks
    );
    // Every task's own file, once, with the bytes that only this task writes.
    let wrong = texts(
        sql,
        "SELECT s.run_id || ' ' || s.task_name FROM app.sbx_runs s JOIN app.runs r ON r.id = s.run_id
           JOIN app.intents i ON i.id = r.intent_id
          WHERE (SELECT array_agg(a.sha256) FROM app.artifacts a WHERE a.task_key = s.task_key AND a.kind = 'file')
             IS DISTINCT FROM ARRAY[encode(sha256(convert_to(
                  (i.inputs->>'n') || '-' || replace(s.task_name, 'part-', '') || chr(10), 'UTF8')), 'hex')]",
    )
    .await;
    assert!(wrong.is_empty(), "tasks without exactly their file: {wrong:#?}");
    let dead = count(sql, "SELECT count(*) FROM app.executors WHERE state = 'dead'").await;
    assert!(dead > i64::try_from(plan.kills).unwrap(), "only {dead} killed workers were noticed");
    // What a killed worker had begun ended as an orphan, or it had just ended by itself.
    let left = texts(
        sql,
        "SELECT s.sandbox_id || ' ' || s.state || ' ' || w.reason FROM app.remote_execution_sessions s
           JOIN app.secure_wipe_evidence w USING (sandbox_id)
          WHERE (s.state = 'ORPHANED') <> (w.reason = 'orphan') OR s.state NOT IN ('ORPHANED', 'COMPLETED')",
    )
    .await;
    assert!(left.is_empty(), "{left:#?}");
    let again = count(sql, "SELECT count(*) FROM app.sbx_executions WHERE execution_no > 1").await;
    let orphans =
        count(sql, "SELECT count(*) FROM app.remote_execution_sessions WHERE state = 'ORPHANED'")
            .await;
    assert!(
        again > 0 && orphans > 0,
        "the kills hit nothing: {again} re-executions, {orphans} orphans"
    );
    let prompts = count(
        sql,
        "SELECT count(*) FROM dbos.workflow_events_history WHERE key = 'ui:approve-plan'",
    )
    .await;
    assert_eq!(
        prompts,
        i64::try_from(plan.runs.div_ceil(plan.gated)).unwrap(),
        "a prompt is emitted once"
    );
    eprintln!("{name}: {tasks} tasks, {again} re-executions on record, {orphans} orphans wiped");
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_workers_lose_nothing() {
    let plan = Storm { runs: 20, tasks: 3, kills: 6, gated: 5, widowed_at: 3, shim_at: 4 };
    storm("killed_workers_lose_nothing", &plan).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "minutes: `make chaos` runs it"]
async fn twenty_kills_over_a_hundred_runs_lose_nothing() {
    let plan = Storm { runs: 100, tasks: 5, kills: 20, gated: 10, widowed_at: 10, shim_at: 13 };
    storm("twenty_kills_over_a_hundred_runs_lose_nothing", &plan).await;
}

/// A run that waits at its gate outlives more restarts than the engine has recovery attempts for.
#[tokio::test(flavor = "multi_thread")]
async fn a_gate_outlives_every_worker_that_waited_at_it() {
    let home = Home::new();
    let mut fleet = Fleet::start(&home);
    fleet.kill(1);
    let run = submit(&fleet.shim, 1, 1, true).await;
    let waits = |h: &Value| h["status"] == "waiting_input";
    fleet.shim.wait_for(&run, "waiting at its gate", waits).await;
    let sql = fleet.shim.sql().await;
    for _ in 0..3 {
        fleet.kill(0);
        fleet.revive(0);
        until("the new worker has taken over", SETTLE, async || {
            count(
                &sql,
                "SELECT count(*) FROM dbos.workflow_status w JOIN app.executors e ON e.id = w.executor_id
                  WHERE w.name = 'run' AND w.status = 'PENDING' AND e.state = 'live'",
            )
            .await
                == 1
        })
        .await;
    }
    approve(&fleet.shim, &run).await;
    let header = fleet.shim.wait_terminal(&run).await;
    assert_eq!(header["status"], "succeeded", "{header}");
    assert_eq!(
        count(
            &sql,
            "SELECT count(*) FROM dbos.workflow_events_history WHERE key = 'ui:approve-plan'"
        )
        .await,
        1
    );
    assert_proven(&home);
}
