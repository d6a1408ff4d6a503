//! A small repository with a failing test, the real OpenCode, and a scripted model.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cofferdam_tests::{Home, Server, text};
use serde_json::{Value, json};

use crate::support::agents::{Model, Programs};
use crate::support::gates::say;
use crate::support::until;

/// A daemon's start takes seconds on a busy machine, and a run has two.
pub const END: Duration = Duration::from_secs(420);
/// The provider's key: nowhere but in the secret store and in what is sent to the provider.
pub const KEY: &str = "sk-planner-5c1f0a77d2";

/// Bound in this order, so that servers end first.
pub struct World {
    pub home: Home,
    pub model: Model,
    pub project: tempfile::TempDir,
    pub program: PathBuf,
    has_provider: AtomicBool,
}

impl World {
    pub fn new(programs: &Programs) -> Self {
        let project = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(project.path().join(name), text).unwrap();
        write(".gitignore", "__pycache__/\n");
        write("calc.py", "def add(a, b):\n    return a - b\n");
        write(
            "test_calc.py",
            "import unittest\nfrom calc import add\n\nclass Adds(unittest.TestCase):\n    def test_add(self):\n        self.assertEqual(add(2, 3), 5)\n",
        );
        fs::create_dir_all(project.path().join("old/deep")).unwrap();
        write("old/deep/unused.py", "x = 1\n");
        write("run.sh", "#!/bin/sh\npython3 -m unittest -q\n");
        Self {
            home: Home::new(),
            model: Model::start(),
            project,
            program: programs.path("opencode"),
            has_provider: AtomicBool::new(false),
        }
    }

    /// Another installation for the same project, program and model.
    pub fn afresh(&mut self) {
        self.home = Home::new();
        self.has_provider = AtomicBool::new(false);
    }

    /// A server with the provider's key and the provider.
    pub async fn up(&self, env: &[(&str, &str)]) -> Server {
        let up = self.home.up_with(&[], env);
        if !self.has_provider.swap(true, Ordering::Relaxed) {
            let value = Some(json!({"value": KEY}).to_string().into_bytes());
            let put = up.request("PUT", "/api/secrets/model-key", Some(&up.key), value).await;
            assert_eq!(put.0, 200, "{}", put.1);
            let body = json!({"name": "main", "url": format!("http://{}/v1", self.model.address),
                "protocols": ["openai-chat"], "secret": "model-key",
                "models": [{"model": "coder", "input_micros": 1_000_000, "output_micros": 5_000_000}]});
            let (status, made) = up.post("/api/models", &body).await;
            assert_eq!(status, 201, "{made}");
        }
        up
    }

    /// A recipe whose agent follows these steps.
    pub fn recipe(&self, steps: &Value, agent: Value, tests: Value) -> String {
        let mut spec = json!({"goal": format!("Make the test pass. [[steps: {steps}]]"),
            "project": self.project.path(), "program": self.program, "model": "coder",
            "models": {"providers": ["main"]}, "timeout": "6m", "patience": "90s"});
        spec.as_object_mut().unwrap().extend(agent.as_object().unwrap().clone());
        json!({"id": "fix", "v": "1", "plan": {"gate": "approve-plan", "agent": spec, "tasks": tests}})
            .to_string()
    }

    /// How often the model was asked for each step.
    pub fn steps_asked(&self) -> Vec<u64> {
        self.model.asked("").iter().map(|row| row["step"].as_u64().unwrap()).collect()
    }
}

pub fn unit() -> Value {
    json!([{"name": "unit", "exec": {"run": "python3 -m unittest -q", "timeout": "60s"}}])
}

/// A plan that changes these files and names these tests.
pub fn plan(files: &[&str], tests: &[&str]) -> Value {
    let files: Vec<Value> = files
        .iter()
        .map(|path| json!({"path": path, "change": "edit", "why": "it is wrong"}))
        .collect();
    json!({"design": "Add instead of subtracting.", "files": files, "risks": ["none known"], "tests": tests,
        "patch_plan": ["mend add()"]})
}

pub fn answers(plan: &Value) -> Value {
    json!({"tool": ["StructuredOutput", plan]})
}

/// A whole script: the plan, one command, the end.
pub fn script(plan: &Value, command: &str) -> Value {
    json!([answers(plan), {"sh": command}, {"text": "done"}])
}

pub const MEND: &str = "sed -i 's/a - b/a + b/' calc.py";

pub async fn started(up: &Server, recipe: &str) -> Value {
    up.run_recipe(recipe, json!({}), json!({})).await
}

/// Waits for the plan's gate.
pub async fn at_gate(up: &Server, run: &Value) {
    let path = format!("/api/runs/{}", text(run, "runId"));
    until("the plan's gate asks", END, async || {
        let header = up.get(&path).await.1;
        assert!(header["status"] != "failed", "{header}");
        header["status"] == "waiting_input"
    })
    .await;
    let gate = format!("{path}/gates/approve-plan");
    until("its prompt is out", END, async || !up.get(&gate).await.1["prompt"].is_null()).await;
}

pub async fn approved(up: &Server, run: &Value) {
    at_gate(up, run).await;
    let (status, answer) = say(up, &up.key, run, "k", "yes").await;
    assert_eq!(status, 200, "{answer}");
}

pub async fn ended(up: &Server, run: &Value) -> Value {
    let path = format!("/api/runs/{}", text(run, "runId"));
    let mut header = Value::Null;
    until("the run ends", END, async || {
        header = up.get(&path).await.1;
        ["succeeded", "failed", "retries_exceeded", "canceled"]
            .contains(&header["status"].as_str().unwrap())
    })
    .await;
    header
}

/// Its steps without what differs from run to run.
pub async fn trace(up: &Server, run: &Value) -> Value {
    let id = text(run, "runId");
    let (_, steps) = up.get(&format!("/api/runs/{id}/steps")).await;
    let (_, artifacts) = up.get(&format!("/api/runs/{id}/artifacts")).await;
    json!({"steps": steps, "artifacts": artifacts})
}
