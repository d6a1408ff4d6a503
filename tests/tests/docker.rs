//! A worker that has a Docker engine hold its sandboxes: what it refuses and what it records.

use crate::support;

use cofferdam_tests::Home;
use cofferdam_tests::not_run::not_run;
use serde_json::{Value, json};
use support::{assert_proven, assert_wiped};

const ENGINE: [&str; 2] = ["--runtime", "docker"];
const HELLO: &str = "id: hello\nv: \"1\"\nplan:\n  tasks:\n    - name: hello\n      exec: {run: \"echo hello from $(hostname)\", timeout: 60s}\n";

#[test]
fn a_worker_that_asks_for_an_engine_that_is_not_there_says_so_and_ends() {
    let home = Home::new();
    let mut up = home.command(&["up", "--listen", "127.0.0.1:0", ENGINE[0], ENGINE[1]]);
    let ended = up.env("DOCKER_HOST", "unix:///nonexistent/docker.sock").output().unwrap();
    assert!(!ended.status.success());
    let words = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert!(words.contains("no Docker engine was found"), "{words}");
    assert!(words.contains("/nonexistent/docker.sock"), "{words}");
}

#[tokio::test]
async fn a_run_in_containers_of_an_engine_is_a_local_docker_one() {
    let home = Home::new();
    let doctor = home.run_json(&["doctor", "--json"]);
    if doctor["classes"]["docker"] != true {
        not_run("the class docker", &doctor["classNotes"]["docker"].to_string());
        return;
    }
    let modes = async |args: &[&str]| -> (String, Value) {
        let up = home.up_with(args, &[]);
        let header = up
            .run_recipe(HELLO, json!({}), json!({"runKey": format!("engine-{}", args.len())}))
            .await;
        let run = header["runId"].as_str().unwrap().to_owned();
        let ended = up.wait_terminal(&run).await;
        assert_eq!(ended["status"], "succeeded", "{ended}");
        let sql = up.sql().await;
        let mode: String = sqlx::query_scalar("SELECT execution_mode FROM app.runs WHERE id = $1")
            .bind(&run)
            .fetch_one(&sql)
            .await
            .unwrap();
        let facts: Value = sqlx::query_scalar(
            "SELECT jsonb_build_object('class', class, 'runtime', runtime, 'version', runtime_version)
               FROM app.remote_execution_sessions WHERE run_id = $1",
        )
        .bind(&run)
        .fetch_one(&sql)
        .await
        .unwrap();
        assert_wiped(&home, &sql).await;
        assert_proven(&home);
        (mode, facts)
    };
    let (mode, facts) = modes(&ENGINE).await;
    assert_eq!((mode.as_str(), &facts["runtime"]), ("LOCAL_DOCKER", &json!("docker")));
    assert!(facts["version"].as_str().unwrap().starts_with("Docker Engine "), "{facts}");
    assert_eq!(facts["class"], "container", "it is as strong as that");
    let (mode, facts) = modes(&[]).await;
    assert_eq!(mode, "LOCAL_NATIVE");
    assert_ne!(facts["runtime"], "docker");
}
