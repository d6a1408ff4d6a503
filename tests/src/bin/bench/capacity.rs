//! What another tenant notices of a flood.

use std::time::Duration;

use cofferdam_tests::{Home, text};
use serde_json::{Value, json};

use crate::figures::{emit, median};

/// Tasks of the flood, of a second each.
const TASKS: usize = 300;
/// Runs of the other tenant, one after the other.
const OTHERS: usize = 5;

fn recipe(id: &str, tasks: usize, run: &str) -> String {
    let tasks: Vec<Value> = (0..tasks)
        .map(|n| {
            let limits = json!({"mem_mb": 32, "disk_mb": 8});
            json!({"name": format!("t{n}"), "exec": {"run": run, "timeout": "600s"}, "limits": limits})
        })
        .collect();
    let caps = json!({"concurrency": 400, "steps": 400, "sandbox_minutes": 6_000});
    json!({"id": id, "v": "1", "caps": caps, "plan": {"tasks": tasks}}).to_string()
}

/// `flood_other_start`: from a run's submission to the start of its sandbox, while another tenant's tasks wait.
pub async fn run() {
    let home = Home::new();
    let up = home.up();
    let sql = up.sql().await;
    let (_, flood) = up.new_key(&json!({"tenant": "flood", "roles": ["submitter"]})).await;
    let (_, other) = up.new_key(&json!({"tenant": "other", "roles": ["submitter"]})).await;
    let (status, header) =
        up.start_recipe_as(&flood, &recipe("flood", TASKS, "sleep 1"), json!({}), json!({})).await;
    assert_eq!(status, 201, "{header}");
    let begun = "SELECT count(*) FROM app.remote_execution_sessions WHERE tenant_id = 'flood'";
    let count = async |query: &'static str| -> i64 {
        sqlx::query_scalar(query).fetch_one(&sql).await.expect(query)
    };
    while count(begun).await < 24 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let one = recipe("one", 1, "true");
    let mut starts = Vec::new();
    for n in 0..OTHERS {
        let opts = json!({"runKey": n.to_string()});
        let (status, header) = up.start_recipe_as(&other, &one, json!({}), opts).await;
        assert_eq!(status, 201, "{header}");
        let run = text(&header, "runId");
        let took = "SELECT extract(epoch FROM min(s.created_at) - min(r.created_at))::float8
                      FROM app.runs r LEFT JOIN app.remote_execution_sessions s ON s.run_id = r.id WHERE r.id = $1";
        let start = loop {
            let took: Option<f64> =
                sqlx::query_scalar(took).bind(&run).fetch_one(&sql).await.expect("a time");
            match took {
                Some(took) => break took,
                None => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        };
        starts.push(start);
    }
    let waiting = count("SELECT count(*) FROM dbos.workflow_status WHERE queue_name = 'sbxQ' AND status = 'ENQUEUED'").await;
    let most = starts.iter().copied().fold(0.0, f64::max);
    let more = json!({"first": starts[0], "p50": median(starts), "flood_waits_after": waiting});
    emit("flood_other_start", most, "s", 2.0, more);
}
