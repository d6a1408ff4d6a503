//! A timeout ends in one state, and a limit that a task reached is told wherever its result is.

use crate::support;

use cofferdam_tests::Home;
use serde_json::{Value, json};
use support::{assert_proven, assert_wiped, found, said};

/// One row of the table in `flows::verdict`, with real sandboxes. The time to collect is the one that
/// is not here: no task can make an agent slow enough, so its row is held there alone.
struct Row {
    name: &'static str,
    task: &'static str,
    opts: Value,
    err_code: &'static str,
    session: &'static str,
    reached: Value,
    cause: &'static str,
}

#[tokio::test]
async fn every_timeout_ends_in_one_code_one_session_state_and_one_run_status() {
    let home = Home::new();
    let server = home.up();
    let sql = server.sql().await;
    let rows = [
        Row {
            name: "build",
            task: "build: {run: sleep 100, timeout: 700ms}, exec: {run: echo never}",
            opts: json!({}),
            err_code: "TIMEOUT",
            session: "FAILED",
            reached: json!(["wall"]),
            cause: "in the build phase: the wall time of 700 ms ran out",
        },
        Row {
            name: "exec",
            task: "exec: {run: \"trap '' TERM; sleep 100\", timeout: 700ms}, artifacts: ['**']",
            opts: json!({}),
            err_code: "TIMEOUT",
            session: "FAILED",
            reached: json!(["wall"]),
            cause: "the wall time of 700 ms ran out",
        },
        Row {
            name: "deadline",
            task: "exec: {run: sleep 100, timeout: 50s}",
            opts: json!({"timeoutMS": 2500}),
            err_code: "CMD_NONZERO",
            session: "CANCELED",
            reached: Value::Null,
            cause: "cancel",
        },
    ];
    for row in rows {
        let yaml =
            format!("id: {}\nv: '1'\nplan: {{tasks: [{{name: t, {}}}]}}\n", row.name, row.task);
        let run = server.run_recipe(&yaml, json!({}), row.opts.clone()).await;
        let id = run["runId"].as_str().unwrap();
        let ended = server.wait_terminal(id).await;
        assert_eq!(ended["status"], "failed", "{}: {ended}", row.name);
        // The session of a canceled task may end a moment after its run.
        let read = "SELECT s.err_code, r.state, s.response->'limitsReached', coalesce(s.response->>'cause', '')
                      FROM app.sbx_runs s JOIN app.remote_execution_sessions r USING (task_key)
                     WHERE s.run_id = $1";
        let seen = found("its session ended", async || {
            let seen: Vec<(String, String, Option<Value>, String)> =
                sqlx::query_as(read).bind(id).fetch_all(&sql).await.unwrap();
            seen.iter()
                .all(|(_, state, ..)| ["FAILED", "CANCELED"].contains(&state.as_str()))
                .then_some(seen)
        })
        .await;
        let [(code, session, reached, cause)] = seen.as_slice() else { panic!("{seen:?}") };
        assert_eq!((code.as_str(), session.as_str()), (row.err_code, row.session), "{}", row.name);
        assert_eq!(reached.clone().unwrap_or_default(), row.reached, "{}", row.name);
        assert!(cause.contains(row.cause), "{}: {cause:?}", row.name);
    }
    assert_wiped(&home, &sql).await;
    assert_proven(&home);
}

#[test]
fn a_limit_that_was_reached_is_shown_by_the_command_line() {
    let home = Home::new();
    let yaml = "id: flood\nv: '1'\nplan:\n  tasks:\n    - name: t\n      limits: {output_bytes: 100, nofile: 64}\n      exec: {run: 'head -c 5000 /dev/zero; perl -e \"while (open my \\$f, q(<), q(/dev/null)) { push @f, \\$f } die qq(\\$!\\\\n)\"'}\n";
    let path = support::recipe(home.path(), "flood", yaml);
    let run = home.run(&["run", &path]);
    assert!(!run.status.success());
    let text = said(&run);
    assert!(text.contains("too many open files"), "{text}");
    assert!(text.contains("4900 bytes of stdout"), "{text}");
    let ps = home.run_json(&["ps", "--json"]);
    let id = ps["runs"][0]["runId"].as_str().unwrap().to_owned();
    let shown = said(&home.run(&["show", &id]));
    assert!(shown.contains("nofile,output"), "{shown}");
    let whole = home.run_json(&["show", &id, "--json"]);
    let steps = whole["steps"].as_array().unwrap();
    let task = steps.iter().find(|step| step["taskKey"].is_string()).unwrap();
    assert_eq!(task["output"]["limitsReached"], json!(["nofile", "output"]), "{task}");
    assert_eq!(task["output"]["effective"]["limits"]["outputBytes"], 100);
}
