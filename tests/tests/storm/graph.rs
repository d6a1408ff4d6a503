//! A graph whose workers, server in front and database are killed with -9 at random moments. It comes to what the same graph comes to
//! when nothing is killed.

use std::time::Duration;

use cofferdam_tests::text;
use nix::sys::signal::Signal;
use serde_json::json;
use sqlx::PgPool;

use crate::storm::fleet::Fleet;
use crate::support::{Dice, assert_proven, assert_wiped, count, texts, until};

/// How much of it.
#[derive(Debug, Clone, Copy)]
struct Woven {
    layers: u32,
    width: u32,
    kills: u64,
}

impl Woven {
    fn tasks(self) -> u64 {
        u64::from(self.layers * self.width)
    }
}

/// Takeovers (five seconds each), restarts of a database, and what is queued then.
const SETTLE: Duration = Duration::from_secs(300);

/// Each task hashes what every task of the layer before it left, and appends its name to a file of the host.
fn yaml(effects: &str, woven: Woven) -> String {
    let width = woven.width;
    let mut yaml = "id: woven\nv: '1'\ncaps: {concurrency: 4}\nplan:\n  tasks:\n".to_owned();
    for layer in 0..woven.layers {
        let files = match layer {
            0 => format!("{{from: {effects:?}, to: /effects, access: full}}"),
            _ => format!(
                "{{from: {effects:?}, to: /effects, access: full}}, {{from: \"task://l{}/v.txt\", to: /work/in}}",
                layer - 1
            ),
        };
        yaml.push_str(&format!(
            "    - name: l{layer}-${{item}}\n      id: l{layer}\n      each: ${{range({width})}}\n      files: [{files}]\n      artifacts: [v.txt]\n      \
             exec: {{run: \"echo l{layer}-${{item}} >> /effects/log; mkdir -p in; (echo ${{item}}; find in -type f | sort | xargs -r cat) | sha256sum > v.txt; sleep 0.1\", workdir: /work, timeout: 60s}}\n      limits: {{mem_mb: 64, disk_mb: 64}}\n"
        ));
    }
    yaml
}

/// The last layer's files: they hang on every file before them.
async fn result(sql: &PgPool, run: &str, woven: Woven) -> Vec<String> {
    let query = format!(
        "SELECT s.task_name || ' ' || a.sha256 FROM app.artifacts a JOIN app.sbx_runs s USING (task_key)
          WHERE a.kind = 'file' AND s.run_id = '{run}' AND s.task_name LIKE 'l{}-%' ORDER BY 1",
        woven.layers - 1
    );
    texts(sql, &query).await
}

async fn begin(fleet: &Fleet, key: &str, woven: Woven) -> String {
    let effects = fleet.effects_dir();
    let recipe = yaml(effects.to_str().unwrap(), woven);
    let header = fleet.shim.run_recipe(&recipe, json!({}), json!({"runKey": key})).await;
    text(&header, "runId")
}

async fn over(sql: &PgPool, run: &str) {
    let query = format!(
        "SELECT count(*) FROM app.runs WHERE id = '{run}' AND finished_at IS NOT NULL
            AND NOT EXISTS (SELECT 1 FROM app.remote_execution_sessions WHERE ended_at IS NULL)"
    );
    until("the graph has ended", SETTLE, async || count(sql, &query).await == 1).await;
}

/// Waits until so many tasks have ended; the database may be away meanwhile.
async fn reached(fleet: &mut Fleet, run: &str, tasks: u64) {
    let query = format!(
        "SELECT count(*) FROM app.sbx_runs WHERE run_id = '{run}' AND response IS NOT NULL"
    );
    let want = i64::try_from(tasks).unwrap();
    until("some more have ended", SETTLE, async || {
        fleet.revive();
        let sql = fleet.database.sql().await;
        let ended = count(&sql, &query).await;
        sql.close().await;
        ended >= want
    })
    .await;
}

async fn kill_one(fleet: &mut Fleet, dice: &mut Dice) {
    match dice.below(4) {
        0 => fleet.shim.kill(),
        1 => {
            fleet.database.end(Signal::SIGKILL);
            dice.moment(0, 1_000).await;
            fleet.database.resume().await;
        }
        _ => {
            let which = usize::try_from(dice.below(3)).unwrap();
            fleet.workers[which].server.kill();
        }
    }
    dice.moment(0, 1_500).await;
    fleet.revive();
}

async fn weave(name: &str, woven: Woven) {
    let mut dice = Dice::new(name);
    let mut fleet = Fleet::start().await;
    let calm = begin(&fleet, "calm", woven).await;
    over(&fleet.database.sql().await, &calm).await;
    let run = begin(&fleet, "stormy", woven).await;
    for kill in 1..=woven.kills {
        reached(&mut fleet, &run, woven.tasks() * kill / (woven.kills + 2)).await;
        dice.moment(0, 300).await;
        kill_one(&mut fleet, &mut dice).await;
    }
    reached(&mut fleet, &run, woven.tasks()).await;
    let sql = fleet.database.sql().await;
    over(&sql, &run).await;
    let wrong = "SELECT id || ' ' || status || ' ' || coalesce(error, '') FROM app.runs WHERE status <> 'succeeded'";
    assert_eq!(texts(&sql, wrong).await, Vec::<String>::new());
    let want = result(&sql, &calm, woven).await;
    assert_eq!(want.len(), usize::try_from(woven.width).unwrap());
    assert_eq!(result(&sql, &run, woven).await, want);
    let again = "SELECT task_name || ' ' || attempt || ' ' || coalesce(err_code, '') || ' ' || coalesce(response::text, '') FROM app.sbx_runs
                  WHERE attempt > 1 OR err_code IS DISTINCT FROM 'NONE'";
    assert_eq!(texts(&sql, again).await, Vec::<String>::new());
    let all = i64::try_from(woven.tasks() * 2).unwrap();
    assert_eq!(count(&sql, "SELECT count(*) FROM app.sbx_runs").await, all, "each once");
    // What tasks did to the host is what the ledger says was begun, no more.
    let begun = count(&sql, "SELECT count(*) FROM app.sbx_executions").await;
    let effects = i64::try_from(fleet.effects().len()).unwrap();
    assert!((all..=begun).contains(&effects), "{effects} effects of {begun} executions");
    // A few may all have been of the server in front.
    assert!(woven.kills < 10 || begun > all, "the kills hit nothing");
    assert_wiped(&fleet.home, &sql).await;
    assert_proven(&fleet.home);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_graph_comes_to_the_same_whatever_is_killed() {
    let woven = Woven { layers: 4, width: 8, kills: 3 };
    weave("a_graph_comes_to_the_same_whatever_is_killed", woven).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "minutes: `make storm` runs it"]
async fn a_graph_of_200_tasks_comes_to_the_same_whatever_is_killed() {
    let woven = Woven { layers: 8, width: 25, kills: 12 };
    weave("a_graph_of_200_tasks_comes_to_the_same_whatever_is_killed", woven).await;
}
