//! Sending an agent off, for the tests of dispatches.

use std::time::Duration;

use cofferdam_tests::{Server, text};
use serde_json::{Value, json};

/// A project with one file, beside a home.
#[derive(Debug)]
pub struct Project(tempfile::TempDir);

impl Project {
    pub fn new() -> Self {
        let dir = tempfile::Builder::new().prefix("cofferdam-project-").tempdir().unwrap();
        std::fs::write(dir.path().join("a.txt"), "before\n").unwrap();
        Self(dir)
    }

    pub fn path(&self) -> &str {
        self.0.path().to_str().unwrap()
    }
}

/// A command in place of an agent.
pub fn script(text: &str, spec: Option<Value>, project: &Project) -> Value {
    let mut body = json!({"agent_type": "command", "prompt": text, "project_dir": project.path()});
    if let Some(spec) = spec {
        body["sandbox_spec"] = spec;
    }
    body
}

/// Sends it off.
pub async fn spawn(up: &Server, body: &Value) -> String {
    let (status, made) = up.post("/api/dispatches", body).await;
    assert_eq!(status, 201, "{made}");
    // It may have begun by the time of the answer.
    assert!(["spawned", "running"].contains(&made["status"].as_str().unwrap()), "{made}");
    text(&made, "id")
}

/// Waits for its end.
pub async fn ended(up: &Server, id: &str) -> Value {
    let deadline = std::time::Instant::now() + Duration::from_secs(90);
    loop {
        let (status, view) = up.get(&format!("/api/dispatches/{id}?timeoutS=10")).await;
        assert_eq!(status, 200, "{view}");
        if !["spawned", "running"].contains(&view["status"].as_str().unwrap()) {
            return view;
        }
        assert!(std::time::Instant::now() < deadline, "{view}");
    }
}

/// The first violation of a kind on its record.
pub fn violation<'a>(view: &'a Value, kind: &str) -> &'a Value {
    let list = view["sandbox_effective"]["violations"].as_array().unwrap();
    list.iter().find(|v| v["kind"] == kind).unwrap_or_else(|| panic!("no {kind} in {view:#}"))
}
