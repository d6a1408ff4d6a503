//! The real programs of agents from npm, installed once, and the scripted model that they ask.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use cofferdam_ambient::env;
use cofferdam_tests::not_run::not_run;
use cofferdam_tests::{Server, repository};
use serde_json::{Value, json};

use super::dispatches::Project;
use super::install::{self, npm};

/// The versions that this repository is tested with.
const PACKAGES: [&str; 3] =
    ["@openai/codex@0.169.0", "@anthropic-ai/claude-code@2.1.197", "opencode-ai@1.18.33"];
/// The name by which a sandbox reaches the model.
pub const MODEL: &str = "model.example";

/// Where they are installed instead, for a test of a machine that has none.
pub const INSTALLED: &str = "COFFERDAM_TEST_AGENTS";

const STRICT: &str = "OC_STRICT_MODE: the real agents are absent; install npm";

/// Whether an absent program is a failure.
fn is_strict() -> bool {
    env::var("OC_STRICT_MODE").is_some_and(|mode| mode != "0")
}

/// The agents' programs, by the type of a dispatch.
#[derive(Debug)]
pub struct Programs(PathBuf);

impl Programs {
    /// Installs them once; `None` where this machine has no npm or reaches no registry, which is reported.
    pub fn installed() -> Option<Self> {
        let dir =
            env::var(INSTALLED).map_or_else(|| repository().join("target/agents"), PathBuf::from);
        let made = install::once(&dir, &PACKAGES.join("\n"), &dir.join("node_modules"), || {
            install::run(npm(&dir, &PACKAGES))
        });
        if let Err(why) = made {
            assert!(!is_strict(), "{STRICT}: {why}");
            not_run("agents of npm", &why);
            return None;
        }
        Some(Self(dir))
    }

    /// The directory of the commands, as npm leaves it.
    pub fn bin(&self) -> PathBuf {
        self.0.join("node_modules/.bin")
    }

    /// The executable itself: a script of npm's would look for what is beside it.
    pub fn path(&self, agent: &str) -> PathBuf {
        let modules = self.0.join("node_modules");
        if agent != "codex" {
            return modules.join(".bin").join(agent).canonicalize().unwrap();
        }
        let below = |dir: &Path| -> Vec<PathBuf> {
            let entries = fs::read_dir(dir).into_iter().flatten().flatten();
            entries.map(|entry| entry.path()).collect()
        };
        let vendors =
            below(&modules.join("@openai")).into_iter().flat_map(|dir| below(&dir.join("vendor")));
        vendors
            .map(|dir| dir.join("bin/codex"))
            .find(|path| path.is_file())
            .expect("codex's program")
    }
}

/// A scripted model on loopback; its own log says what it was asked.
#[derive(Debug)]
pub struct Model {
    child: Child,
    pub address: String,
    dir: tempfile::TempDir,
}

impl Model {
    pub fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let program = repository().join("tests/tests/support/scripted_model.py");
        let mut child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "python3"])
            .arg(program)
            .arg(dir.path().join("log"))
            .stdout(Stdio::piped())
            .stderr(File::create(dir.path().join("errors")).unwrap())
            .spawn()
            .expect("python3 starts");
        let mut address = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut address).unwrap();
        assert!(!address.is_empty(), "the scripted model did not start");
        Self { child, address: address.trim().to_owned(), dir }
    }

    /// The argument of a server whose sandboxes reach it by its name.
    pub fn flag(&self) -> String {
        format!("--egress-host={MODEL}={}", self.address)
    }

    /// What it was asked, in order, by requests whose script mentions this text.
    pub fn asked(&self, mark: &str) -> Vec<Value> {
        let log = fs::read_to_string(self.dir.path().join("log")).unwrap_or_default();
        let all = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        all.filter(|row| row["script"].to_string().contains(mark)).collect()
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// An agent's home with the configuration that leads it to the model.
pub fn home(agent: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let write = |path: &str, text: String| {
        let path = dir.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    match agent {
        "codex" => write(
            ".codex/config.toml",
            format!(
                "model = \"scripted\"\nmodel_provider = \"s\"\n[model_providers.s]\nname = \"s\"\n\
                 base_url = \"http://{MODEL}/v1\"\nwire_api = \"responses\"\n"
            ),
        ),
        "claude" => {
            // By itself it asks a model that refuses it for three minutes.
            let env = json!({"ANTHROPIC_BASE_URL": format!("http://{MODEL}"), "ANTHROPIC_API_KEY": "k",
                "CLAUDE_CODE_MAX_RETRIES": "2"});
            write(".claude/settings.json", json!({"env": env}).to_string());
        }
        _ => {
            let options = json!({"baseURL": format!("http://{MODEL}/v1"), "apiKey": "k"});
            let provider = json!({"npm": "@ai-sdk/openai-compatible", "options": options,
                "models": {"scripted": {"name": "scripted"}}});
            let config = json!({"model": "proxy/scripted", "provider": {"proxy": provider}});
            write(".config/opencode/opencode.json", config.to_string());
        }
    }
    dir
}

/// One kind of agent, ready to be sent off.
#[derive(Debug)]
pub struct Agent {
    pub kind: &'static str,
    program: PathBuf,
    home: tempfile::TempDir,
    pub project: Project,
}

impl Agent {
    pub fn new(kind: &'static str, programs: &Programs) -> Self {
        Self { kind, program: programs.path(kind), home: home(kind), project: Project::new() }
    }

    /// The body of a spawn whose prompt holds these steps.
    pub fn body(&self, steps: &Value, spec: &Value) -> Value {
        let mut whole = json!({
            "mounts": [
                {"source": self.program, "target": format!("/opt/agents/bin/{}", self.kind)},
                {"source": self.home.path(), "target": "/home/agent", "access": "workspace-write"},
            ],
            "phases": {"exec": {"egress": [MODEL]}},
        });
        let fields = spec.as_object().unwrap().clone();
        whole.as_object_mut().unwrap().extend(fields);
        json!({"agent_type": self.kind, "prompt": format!("Do this. [[steps: {steps}]]"),
            "project_dir": self.project.path(), "sandbox_spec": whole, "timeout_sec": 240})
    }
}

/// The files that a dispatch left, by their names.
pub async fn files(up: &Server, view: &Value) -> Vec<String> {
    let run = view["run_id"].as_str().unwrap();
    let (_, artifacts) = up.get(&format!("/api/runs/{run}/artifacts")).await;
    let uris = artifacts.as_array().unwrap().iter().filter_map(|a| a["uri"].as_str());
    uris.filter_map(|uri| uri.split_once("/files/").map(|(_, name)| name.to_owned())).collect()
}
