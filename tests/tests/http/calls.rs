//! The API as a client calls it: what it makes, what it reads, and the bytes of an answer.

use cofferdam_tests::{Server, text};
use serde_json::{Value, json};

pub fn list(value: &Value) -> &Vec<Value> {
    value.as_array().unwrap_or_else(|| panic!("no list: {value}"))
}

pub async fn import(server: &Server, yaml: &str) -> Value {
    let (status, imported) = server.post("/api/recipes/import", &json!({"yaml": yaml})).await;
    assert_eq!(status, 201, "{imported}");
    imported
}

pub async fn intent(server: &Server, inputs: Value) -> Value {
    let (status, made) =
        server.post("/api/intents", &json!({"goal": "a goal", "inputs": inputs})).await;
    assert_eq!(status, 201, "{made}");
    made["intentId"].clone()
}

pub async fn fetched(server: &Server, path: &str) -> Value {
    let (status, answer) = server.get(path).await;
    assert_eq!(status, 200, "{path}: {answer}");
    answer
}

/// A run to its end; the header.
pub async fn ran(server: &Server, yaml: &str, form: Value, opts: Value) -> Value {
    let header = server.run_recipe(yaml, form, opts).await;
    server.wait_terminal(&text(&header, "runId")).await
}

pub async fn artifacts(server: &Server, run: &Value) -> Vec<Value> {
    list(&fetched(server, &format!("/api/runs/{}/artifacts", text(run, "runId"))).await).clone()
}

/// The task attempts of a run, from `/steps`.
pub async fn attempts(server: &Server, run: &Value) -> Vec<Value> {
    let steps = fetched(server, &format!("/api/runs/{}/steps", text(run, "runId"))).await;
    list(&steps).iter().filter(|s| s["taskKey"].is_string()).cloned().collect()
}

/// Bytes, status, ETag and content type of a GET.
pub async fn raw(
    server: &Server,
    path: &str,
    key: &str,
    header: Option<(&str, &str)>,
) -> (u16, Vec<u8>, String, String) {
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let mut request = client
        .get(format!("{}{path}", server.url))
        .header("authorization", format!("Bearer {key}"));
    if let Some((name, value)) = header {
        request = request.header(name, value);
    }
    let answer = request.send().await.unwrap();
    let named = |name: &str| {
        answer.headers().get(name).map_or(String::new(), |v| v.to_str().unwrap().to_owned())
    };
    let (status, tag, kind) = (answer.status().as_u16(), named("etag"), named("content-type"));
    (status, answer.bytes().await.unwrap().to_vec(), tag, kind)
}

/// The SHA-256 as the machine's own tool computes it: not by the code under test.
pub fn sha256(bytes: &[u8]) -> String {
    use std::io::Write as _;
    use std::process::{Command, Stdio};
    let mut child = Command::new("sha256sum")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("sha256sum (coreutils)");
    child.stdin.take().unwrap().write_all(bytes).unwrap();
    String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap()[..64].to_owned()
}
