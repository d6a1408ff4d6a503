//! Strict mode: the real daemon and credentials, or a refusal that names what lacks; and its tests fail where they cannot run.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use cofferdam_tests::not_run::FILE;
use cofferdam_tests::{Home, row_counts};
use serde_json::json;

use crate::support::agents::INSTALLED;

const STRICT: (&str, &str) = ("OC_STRICT_MODE", "1");
const ON_ANY_PORT: [&str; 3] = ["up", "--listen", "127.0.0.1:0"];

/// A program that says that it is this version of OpenCode.
fn opencode(dir: &Path, version: &str) {
    let program = dir.join("opencode");
    fs::write(&program, format!("#!/bin/sh\necho {version}\n")).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
}

fn refused(home: &Home, args: &[&str], path: &Path, more: (&str, &str)) -> String {
    let mut command = home.command(args);
    let output = command.envs([STRICT, more]).env("PATH", path).output().unwrap();
    assert!(!output.status.success(), "{output:?}");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn a_server_in_strict_mode_names_all_that_lacks_and_makes_nothing() {
    let home = Home::empty();
    let dir = tempfile::tempdir().unwrap();
    let args = [&ON_ANY_PORT[..], &["--egress-host", "a.example=127.0.0.1:1"]].concat();
    let said = refused(&home, &args, dir.path(), ("COFFERDAM_FAILPOINT", "nowhere"));
    for words in ["OC_STRICT_MODE=1", "--egress-host", "COFFERDAM_FAILPOINT", "npm"] {
        assert!(said.contains(words), "{words}: {said}");
    }
    opencode(dir.path(), "0.0.1");
    let said = refused(&home, &ON_ANY_PORT, dir.path(), ("NOTHING", ""));
    assert!(said.contains("0.0.1") && said.contains("opencode-ai@"), "{said}");
    let said = refused(&home, &ON_ANY_PORT, dir.path(), ("OC_STRICT_MODE", "perhaps"));
    assert!(said.contains("give 1 or 0"), "{said}");
    assert!(!home.path().join("database").exists(), "it opened a database before it looked");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_without_a_credential_is_refused_in_strict_mode_and_nothing_is_written() {
    let home = Home::new();
    let dir = tempfile::tempdir().unwrap();
    opencode(dir.path(), cofferdam_opencode::VERSION);
    let path = std::env::var("PATH").unwrap_or_default();
    let path = format!("{}:{path}", dir.path().display());
    let up = home.up_with(&[], &[STRICT, ("PATH", &path)]);
    let provider = |secret: Option<&str>| {
        let mut body = json!({"name": "main", "url": "http://127.0.0.1:9/v1", "protocols": ["openai-chat"],
            "models": [{"model": "coder", "input_micros": 1, "output_micros": 1}]});
        if let Some(secret) = secret {
            body["secret"] = json!(secret);
        }
        body
    };
    let yaml = "id: asks\nv: \"1\"\nplan:\n  tasks:\n    - name: t\n      models: {providers: [main]}\n      exec: {run: \"true\", timeout: 30s}\n";
    let (status, imported) = up.post("/api/recipes/import", &json!({"yaml": yaml})).await;
    assert_eq!(status, 201, "{imported}");
    let body = json!({"recipeRef": imported["recipeRef"], "formData": {}, "opts": {}});
    let sql = up.sql().await;
    for (secret, words) in
        [(None, "has no credential"), (Some("model-key"), "secret set model-key")]
    {
        if secret.is_some() {
            let value = Some(json!({"value": "sk-strict-1"}).to_string().into_bytes());
            let set = up.request("PUT", "/api/secrets/model-key", Some(&up.key), value).await;
            assert_eq!(set.0, 200, "{}", set.1);
        }
        let (status, made) = up.post("/api/models", &provider(secret)).await;
        assert!([200, 201].contains(&status), "{made}");
        if secret.is_some() {
            let gone = up.request("DELETE", "/api/secrets/model-key", Some(&up.key), None).await;
            assert_eq!(gone.0, 200, "{}", gone.1);
        }
        let before = row_counts(&sql).await;
        let (status, answer) = up.post("/api/run", &body).await;
        assert_eq!((status, &answer["code"]), (400, &json!("policy_violation")), "{answer}");
        assert!(answer["error"].to_string().contains(words), "{words}: {answer}");
        assert_eq!(answer["details"]["provider"], "main", "{answer}");
        assert_eq!(row_counts(&sql).await, before);
    }
    let value = Some(json!({"value": "sk-strict-2"}).to_string().into_bytes());
    let set = up.request("PUT", "/api/secrets/model-key", Some(&up.key), value).await;
    assert_eq!(set.0, 200, "{}", set.1);
    let (status, started) = up.post("/api/run", &body).await;
    assert_eq!(status, 201, "{started}");
}

/// The contract's own test on a machine without npm, in a process of its own.
fn without_npm(mode: &str, not_run: &Path) -> Output {
    let nothing = tempfile::tempdir().unwrap();
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "opencode::the_real_daemon_holds_the_contract", "--test-threads=1"])
        .env(INSTALLED, nothing.path())
        .env("PATH", nothing.path())
        .env("OC_STRICT_MODE", mode)
        .env(FILE, not_run)
        .output()
        .unwrap()
}

#[test]
fn the_contract_of_an_absent_daemon_fails_in_strict_mode_and_is_reported_otherwise() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("not-run");
    let strict = without_npm("1", &file);
    let said = String::from_utf8_lossy(&strict.stdout);
    assert!(!strict.status.success() && said.contains("OC_STRICT_MODE"), "{said}");
    assert!(!file.exists(), "a failure is no part that was not run");
    let lenient = without_npm("0", &file);
    assert!(lenient.status.success(), "{}", String::from_utf8_lossy(&lenient.stdout));
    let reported = fs::read_to_string(&file).unwrap();
    assert!(reported.contains("the_real_daemon_holds_the_contract\tagents of npm"), "{reported}");
}
