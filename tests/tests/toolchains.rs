//! Toolchains of the host: what a task finds first in its PATH, what a plan pins, and what is refused.

use crate::support;

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use cofferdam_tests::{Home, Server, text};
use serde_json::{Value, json};
use support::gates::say;
use support::{assert_proven, assert_wiped, said, texts};

const ASKS: &str = r#"
id: asks
v: "1"
plan:
  gate: approve-plan
  tasks:
    - name: t
      toolchains: [node@22, go]
      build: {run: [go, build]}
      exec: {run: "node; command -v node; echo no > $(dirname $(command -v node))/new; true", timeout: 60s}
"#;

/// A host directory with toolchains whose programs say what they are.
struct Installed(tempfile::TempDir);

impl Installed {
    fn new() -> Self {
        let installed = Self(tempfile::tempdir().unwrap());
        fs::set_permissions(installed.0.path(), fs::Permissions::from_mode(0o755)).unwrap();
        installed.program("node/v22.3.0/bin/node", "node 22.3.0");
        installed.program("node/v22.11.0/bin/node", "node 22.11.0");
        installed.program("node/v20.1.0/bin/node", "node 20.1.0");
        installed.program("go/bin/go", "go 1.22.1");
        fs::write(installed.at("go/VERSION"), "go1.22.1\n").unwrap();
        installed
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn program(&self, name: &str, says: &str) {
        let path = self.at(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, format!("#!/bin/sh\necho {says}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    async fn allowed(&self, up: &Server) {
        let dirs = json!([self.at("node"), self.at("go")]);
        let body = json!({"value": dirs, "expectedVersion": 0, "scope": "global"});
        let body = body.to_string().into_bytes();
        let (status, said) =
            up.request("PUT", "/api/config/toolchains.dirs", Some(&up.key), Some(body)).await;
        assert_eq!(status, 200, "{said}");
    }
}

async fn started(up: &Server, key: &str, yaml: &str) -> (u16, Value) {
    up.start_recipe_as(key, yaml, json!({}), json!({})).await
}

async fn waiting(up: &Server, yaml: &str) -> Value {
    let (status, run) = started(up, &up.key, yaml).await;
    assert_eq!(status, 201, "{run}");
    up.wait_for(&text(&run, "runId"), "its gate", |h| h["status"] == "waiting_input").await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_finds_what_its_plan_pins_and_cannot_write_to_it() {
    let (home, installed) = (Home::new(), Installed::new());
    let up = home.up();
    installed.allowed(&up).await;
    let run = waiting(&up, ASKS).await;
    let sql = up.sql().await;
    let card = texts(&sql, "SELECT inline FROM app.artifacts WHERE kind = 'plan_card'").await;
    assert!(card[0].contains("22.11.0") && card[0].contains("1.22.1"), "{}", card[0]);
    assert_eq!(say(&up, &up.key, &run, "k", "yes").await.0, 200);
    let end = up.wait_terminal(&text(&run, "runId")).await;
    assert_eq!(end["status"], "succeeded", "{end}");
    let output = texts(&sql, "SELECT inline FROM app.artifacts WHERE kind = 'stdout'").await;
    assert!(output[0].contains("node 22.11.0\n/opt/toolchains/node-22.11.0-"), "{}", output[0]);
    assert!(!installed.at("node/v22.11.0/bin/new").exists(), "it is read-only");
    // A tenant that is given no directory of the host is given toolchains.
    let (_, key) = up.new_key(&json!({"tenant": "acme", "roles": ["submitter"]})).await;
    let plain = ASKS.replace("  gate: approve-plan\n", "");
    let (status, theirs) = started(&up, &key, &plain).await;
    assert_eq!(status, 201, "{theirs}");
    let query = format!("SELECT status FROM app.runs WHERE id = '{}'", text(&theirs, "runId"));
    support::until("the tenant's run ends", std::time::Duration::from_secs(60), async || {
        ["succeeded", "failed"].contains(&texts(&sql, &query).await[0].as_str())
    })
    .await;
    assert_eq!(texts(&sql, &query).await, ["succeeded"]);
    assert_proven(&home);
    assert_wiped(&home, &sql).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_absent_or_leads_out_is_refused_at_submission_with_what_is_there() {
    let (home, installed) = (Home::new(), Installed::new());
    let up = home.up();
    installed.allowed(&up).await;
    let outside = tempfile::tempdir().unwrap();
    fs::create_dir_all(outside.path().join("v30.0.0/bin")).unwrap();
    fs::write(outside.path().join("v30.0.0/bin/node"), "").unwrap();
    symlink(outside.path().join("v30.0.0"), installed.at("node/v30.0.0")).unwrap();
    for (asked, words) in
        [("node@30", "22.11.0"), ("node@18", "20.1.0"), ("python", "none of its kind")]
    {
        let (status, refused) = started(&up, &up.key, &ASKS.replace("node@22, go", asked)).await;
        assert_eq!(
            (status, &refused["code"]),
            (400, &json!("recipe_invalid")),
            "{asked}: {refused}"
        );
        let why = text(&refused, "error");
        assert!(why.contains(words) && why.contains(asked), "{why}");
        assert_eq!(refused["details"]["field"], "toolchains");
    }
    for bad in ["ruby", "node@../x", "node, node@20"] {
        let yaml = json!({"yaml": ASKS.replace("node@22, go", bad)});
        let (status, imported) = up.post("/api/recipes/import", &yaml).await;
        if status == 201 {
            let (status, refused) = started(&up, &up.key, &ASKS.replace("node@22, go", bad)).await;
            assert_eq!(status, 400, "{bad}: {refused}");
        } else {
            assert_eq!(
                (status, &imported["code"]),
                (400, &json!("recipe_invalid")),
                "{bad}: {imported}"
            );
        }
    }
    // No tenant says where to look.
    let body = json!({"value": ["/"], "expectedVersion": 0}).to_string().into_bytes();
    let (status, refused) =
        up.request("PUT", "/api/config/toolchains.dirs", Some(&up.key), Some(body)).await;
    assert_ne!(status, 200, "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_changed_since_the_plan_is_not_given() {
    let (home, installed) = (Home::new(), Installed::new());
    let up = home.up();
    installed.allowed(&up).await;
    let run = waiting(&up, ASKS).await;
    installed.program("node/v22.11.0/bin/node", "node of somebody else");
    assert_eq!(say(&up, &up.key, &run, "k", "yes").await.0, 200);
    let end = up.wait_terminal(&text(&run, "runId")).await;
    assert_eq!(end["status"], "failed", "{end}");
    let (_, steps) = up.get(&format!("/api/runs/{}/steps", text(&run, "runId"))).await;
    assert!(steps.to_string().contains("start a new run"), "{steps}");
    let shown = home.run(&["show", &text(&run, "runId")]);
    assert!(!said(&shown).contains("node of somebody else"), "{}", said(&shown));
    assert!(Path::new(&installed.at("go/bin/go")).exists());
}
