//! Contexts of the code interpreter by HTTP over loopback, in a sandbox of the built template on the real binary.
//!
//! | Figure | The clock starts | It stops |
//! |---|---|---|
//! | `e2b_context` | before `POST /contexts`, half a second after the one before | with its answer: its kernel is there |
//! | `e2b_context`, `at_once_ms` | before the second of two that follow each other | the same: its kernel is forked in between |
//! | `e2b_context`, `first_ms` | before `POST /execute` of `1+1` in the new context | with the end of its answer |
//! | `e2b_context`, `create_ms` | before `POST /v2/sandboxes` | with its answer: the interpreter is ready |

use std::process::Command;
use std::time::{Duration, Instant};

use cofferdam_tests::e2b::{Caller, answered};
use cofferdam_tests::{Home, repository};
use serde_json::{Value, json};

use super::figures::{emit, median, percentile, rounded};
use super::life::ms;

const TEMPLATE: &str = "code-interpreter-v1";
const TURNS: usize = 40;
const COLD: usize = 3;
const CREATES: usize = 5;
/// Until the next kernel waits.
const PAUSE: Duration = Duration::from_millis(500);

pub async fn run() {
    let home = Home::new();
    if let Err(why) = template(&home) {
        return println!("{}", json!({"name": "e2b_context", "absent": why}));
    }
    let mut server = home.up();
    let client = Caller::of(&server, "bench").await;
    let mut creates = Vec::new();
    for _ in 0..CREATES {
        let clock = Instant::now();
        let id = created(&client).await;
        creates.push(ms(clock));
        client.kill(&id).await;
    }
    let id = created(&client).await;
    tokio::time::sleep(4 * PAUSE).await;
    let (mut waited, mut at_once, mut firsts) = (Vec::new(), Vec::new(), Vec::new());
    for turn in 0..TURNS + COLD {
        let mut contexts = Vec::new();
        for times in [&mut waited, &mut at_once] {
            let clock = Instant::now();
            let (status, context) = asked(&client, &id, "POST", "/contexts", json!({})).await;
            let took = ms(clock);
            assert_eq!(status, 201, "{context}");
            if turn >= COLD {
                times.push(took);
            }
            contexts.push(context["id"].as_str().unwrap().to_owned());
        }
        let clock = Instant::now();
        let code = json!({"code": "1+1", "context_id": contexts[0]});
        let (status, answer) = asked(&client, &id, "POST", "/execute", code).await;
        firsts.push(ms(clock));
        assert!(status == 200 && answer.to_string().contains("end_of_execution"), "{answer}");
        for context in contexts {
            let path = format!("/contexts/{context}");
            assert_eq!(asked(&client, &id, "DELETE", &path, json!({})).await.0, 204);
        }
        tokio::time::sleep(PAUSE).await;
    }
    let more = json!({
        "n": TURNS, "p90": rounded(percentile(waited.clone(), 90)), "at_once_ms": rounded(median(at_once)),
        "first_ms": rounded(median(firsts)), "create_ms": rounded(median(creates)),
    });
    emit("e2b_context", median(waited), "ms", 10.0, more);
    client.kill(&id).await;
    server.stop();
}

/// The template of a home: a copy of what the tests built, where they did, or built here, which takes minutes.
fn template(home: &Home) -> Result<(), String> {
    let built = repository().join("target/e2b/templates/state/images");
    let ended = if built.is_dir() {
        let copy =
            Command::new("cp").arg("-a").args([&built, &home.path().join("images")]).output();
        copy.map_err(|error| error.to_string())?
    } else {
        home.run(&["template", "build", TEMPLATE])
    };
    match ended.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&ended.stderr).trim().to_owned()),
    }
}

async fn created(client: &Caller) -> String {
    client.create(json!({"templateID": TEMPLATE, "timeout": 600})).await.0
}

async fn asked(client: &Caller, id: &str, method: &str, path: &str, body: Value) -> (u16, Value) {
    answered(client.port(method, (id, 49_999), path).body(body.to_string())).await
}
