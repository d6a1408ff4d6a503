//! What would end the same another time is tried once, and says what to do.

use crate::support;

use cofferdam_tests::{Home, Server, text};
use serde_json::{Value, json};
use support::count;

/// The end of a run of one task, and its only attempt.
async fn ended(up: &Server, task: &Value) -> (Value, Value) {
    let recipe = json!({"id": "permanent", "v": "1", "plan": {"tasks": [task]}});
    let header = up.run_recipe(&recipe.to_string(), json!({}), json!({})).await;
    let run = text(&header, "runId");
    let header = up.wait_terminal(&run).await;
    let (_, steps) = up.get(&format!("/api/runs/{run}/steps")).await;
    let attempts: Vec<Value> =
        steps.as_array().unwrap().iter().filter(|s| s["taskKey"].is_string()).cloned().collect();
    assert_eq!(attempts.len(), 1, "tried once: {steps:#}");
    (header, attempts[0].clone())
}

#[tokio::test(flavor = "multi_thread")]
async fn e3_artifacts_beyond_a_bound_are_named_what_fits_is_kept_and_nothing_is_tried_again() {
    let home = Home::new();
    let up = home.up();
    let sql = up.sql().await;
    for (key, value) in [("artifacts.max_files", 1_000), ("artifacts.max_mb", 64)] {
        let body = json!({"value": value, "expectedVersion": 0});
        let body = Some(body.to_string().into_bytes());
        let set = up.request("PUT", &format!("/api/config/{key}"), Some(&up.key), body).await;
        assert_eq!(set.0, 200, "{set:?}");
    }
    for (script, words, kept) in [
        (
            "seq -f f%04g 1001 | xargs touch",
            ["1 file with 0 bytes", "the first \"f1001\": at most 1000 files", "match fewer"],
            1_000,
        ),
        (
            "echo a > a; echo z > z; truncate -s 67108865 big.bin",
            ["with 67108865 bytes", "the first \"big.bin\": at most 67108864 bytes", "compress"],
            2,
        ),
    ] {
        let task = json!({"name": "t", "exec": {"run": format!("echo done; {script}"), "timeout": "60s"},
            "limits": {"disk_mb": 256}, "artifacts": ["**"]});
        let (header, attempt) = ended(&up, &task).await;
        assert_eq!(attempt["output"]["errCode"], "DOWNLOAD_FAIL", "{attempt:#}");
        assert_eq!(attempt["output"]["limitsReached"], json!(["artifacts"]), "{attempt:#}");
        let why = text(&attempt, "error");
        for word in words {
            assert!(why.contains(word) && text(&header, "error").contains(word), "{word}: {why}");
        }
        assert_eq!(attempt["output"]["omitted"]["files"], 1, "{attempt:#}");
        // What fits is kept, and all of what it said.
        let run = text(&header, "runId");
        let files =
            format!("SELECT count(*) FROM app.artifacts WHERE run_id = '{run}' AND kind = 'file'");
        assert_eq!(count(&sql, &files).await, kept);
        let said = format!(
            "SELECT count(*) FROM app.artifacts WHERE run_id = '{run}' AND kind = 'stdout' AND size = 5"
        );
        assert_eq!(count(&sql, &said).await, 1);
    }
    // As many as are kept.
    let task = json!({"name": "t", "exec": {"run": "seq -f f%04g 1000 | xargs touch", "timeout": "60s"}, "artifacts": ["**"]});
    let (header, _) = ended(&up, &task).await;
    assert_eq!(header["status"], "succeeded", "{header}");
}

#[tokio::test(flavor = "multi_thread")]
async fn e3_what_would_be_refused_again_is_tried_once() {
    let home = Home::new();
    let up = home.up_with(&["--memory-mb", "2048"], &[]);
    let exec = json!({"run": "true", "timeout": "30s"});
    let digest = "0".repeat(64);
    let gone = format!("artifact://run/rn_{}/step/s/task/{digest}/files/x", "0".repeat(32));
    for (task, words) in [
        (
            json!({"name": "t", "exec": {"run": ["no-such-program"], "env": {"PATH": "/usr/bin"}, "timeout": "30s"}}),
            "was not found in PATH",
        ),
        (
            json!({"name": "t", "exec": {"run": "true", "workdir": "/no/such", "timeout": "30s"}}),
            "working directory",
        ),
        (
            json!({"name": "t", "exec": exec, "files": [{"from": gone, "to": "/work/x"}]}),
            "no such artifact",
        ),
        (
            json!({"name": "t", "exec": exec, "files": [{"text": "x", "to": "/proc/version"}]}),
            "/proc/version",
        ),
        (json!({"name": "t", "exec": exec, "limits": {"mem_mb": 4_096}}), "--memory-mb"),
    ] {
        let (header, attempt) = ended(&up, &task).await;
        assert_ne!(header["status"], "succeeded", "{header}");
        let why = text(&attempt, "error");
        assert!(why.contains(words), "{words}: {why}");
    }
    // An image that is not there is known before anything starts.
    let task = json!({"name": "t", "exec": exec, "image": "image:no-such-image"});
    let recipe = json!({"id": "absent", "v": "1", "plan": {"tasks": [task]}}).to_string();
    let (status, refused) = up.start_recipe_as(&up.key, &recipe, json!({}), json!({})).await;
    assert_eq!((status, &refused["code"]), (400, &json!("recipe_invalid")), "{refused}");
    assert!(refused.to_string().contains("no-such-image"), "{refused}");
}
