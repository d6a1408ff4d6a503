//! What is wrong with a dispatch is said plainly, with the right exit code, and nothing is written.

use crate::support;

use cofferdam_tests::{Home, Server, row_counts, text};
use serde_json::{Value, json};
use support::said;

#[tokio::test(flavor = "multi_thread")]
async fn wrong_spawns_end_with_their_code_and_write_nothing() {
    let home = Home::new();
    let up = home.up();
    let sql = up.sql().await;
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    std::fs::write(at("prompt"), "true\n").unwrap();
    std::fs::write(at("empty"), "").unwrap();
    std::fs::write(at("broken.json"), "{\"max_turns\": ").unwrap();
    let huge = json!({"tools_allowed": vec!["x".repeat(100); 100_000]}).to_string();
    assert!(huge.len() > 10_000_000);
    std::fs::write(at("huge.json"), huge).unwrap();
    let prompt = format!("--prompt-file={}", at("prompt"));
    let project = format!("--project={}", dir.path().display());
    let good = [prompt.as_str(), "--type=command", project.as_str()];
    let before = row_counts(&sql).await;
    let cases: Vec<(Vec<String>, i32, &str)> = vec![
        (vec![], 3, "prompt-file"),
        (vec![format!("--prompt-file={}", at("missing"))], 2, "missing"),
        (vec![format!("--prompt-file={}", dir.path().display())], 2, "prompt-file"),
        (vec![format!("--prompt-file={}", at("empty"))], 2, "empty"),
        (vec![prompt.clone(), "--type=gpt".into()], 3, "gpt"),
        (vec![prompt.clone(), "--sandbox=sudo".into()], 3, "sudo"),
        (vec![prompt.clone(), "--timeout=-5".into()], 3, "-5"),
        (vec![prompt.clone(), "--timeout=0".into()], 3, "0"),
        (vec![prompt.clone(), format!("--project={}", at("nowhere"))], 2, "nowhere"),
        (vec![prompt.clone(), format!("--project={}", at("prompt"))], 2, "not a directory"),
        (vec![prompt.clone(), "--sandbox-spec={\"max_turns\":".into()], 3, "no JSON"),
        (vec![prompt.clone(), format!("--sandbox-spec=@{}", at("broken.json"))], 3, "no JSON"),
        (vec![prompt.clone(), format!("--sandbox-spec=@{}", at("huge.json"))], 3, "65536"),
        (vec![prompt.clone(), format!("--sandbox-spec=@{}", at("none.json"))], 2, "none.json"),
        (vec![prompt.clone(), "--sandbox-spec={\"max_turns\":-1}".into()], 3, "max_turns"),
        (vec![prompt.clone(), "--sandbox-spec={\"limits\":{\"cpu\":-1}}".into()], 3, "cpu"),
        (vec![prompt.clone(), "--sandbox-spec={\"vendor\":1}".into()], 3, "vendor"),
        (vec![prompt.clone(), "--sandbox-spec".into(), "[]".into()], 3, "object"),
        (vec![prompt.clone(), "--parent-id=aaaaaaaa".into()], 1, "not found"),
        (vec![prompt.clone(), "--parent-id=no".into()], 1, "not found"),
        (vec![prompt.clone(), "--".into(), "ls".into()], 3, "--type=command"),
    ];
    for (args, code, says) in cases {
        let mut line = vec!["dispatch".to_owned(), "spawn".to_owned()];
        line.extend(args);
        let line: Vec<&str> = line.iter().map(String::as_str).collect();
        let output = home.run(&line);
        assert_eq!(output.status.code(), Some(code), "{line:?}: {}", said(&output));
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(stderr.contains(says), "{line:?} should say {says:?}: {}", said(&output));
        assert!(output.stdout.is_empty(), "{line:?}: {}", said(&output));
    }
    for (args, says) in [
        (vec!["status", "zzzzzzzz"], "not found"),
        (vec!["status", "NOT-AN-ID"], "not found"),
        (vec!["poll", "zzzzzzzz"], "not found"),
        (vec!["wait", "zzzzzzzz"], "not found"),
        (vec!["kill", "zzzzzzzz"], "not found"),
        (vec!["retry", "zzzzzzzz"], "not found"),
        (vec!["tokens", "zzzzzzzz"], "not found"),
    ] {
        let line: Vec<&str> = ["dispatch"].iter().chain(&args).copied().collect();
        let output = home.run(&line);
        assert_eq!(output.status.code(), Some(1), "{line:?}: {}", said(&output));
        assert!(String::from_utf8_lossy(&output.stderr).contains(says), "{}", said(&output));
    }
    assert_eq!(row_counts(&sql).await, before);
    let mut line = vec!["dispatch", "spawn", "--sandbox-spec={\"vendor\":1}", "--lenient-spec"];
    line.extend(good);
    let output = home.run(&line);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let id = String::from_utf8(output.stdout).unwrap().trim().to_owned();
    let view = home.run_json(&["dispatch", "wait", &id, "--json"]);
    assert_eq!(view["sandbox_spec"], json!({"vendor": 1}), "kept verbatim");
    assert_eq!(view["sandbox_effective"]["unenforced"], json!({"vendor": 1}), "{view:#}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_gets_the_allowed_roots_and_sees_no_other_tenants_dispatch() {
    let home = Home::new();
    let (inside, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let allowed = inside.path().to_str().unwrap();
    // Whoever accepts work and whoever does it both know the roots.
    let up =
        Server::start(&home, &["shim", "--listen", "127.0.0.1:0", "--allow-dir", allowed], &[]);
    let _worker = Server::start(&home, &["worker", "--allow-dir", allowed], &[]);
    let sql = up.sql().await;
    let mut keys = Vec::new();
    for tenant in ["acme", "zenith"] {
        let roles = json!({"tenant": tenant, "roles": ["submitter", "operator"]});
        keys.push(up.new_key(&roles).await.1);
    }
    let body = |dir: &str, mode: &str| {
        let spec = json!({"access_mode": mode});
        json!({"agent_type": "command", "prompt": "true\n", "project_dir": dir, "sandbox_spec": spec})
    };
    let before = row_counts(&sql).await;
    for (dir, mode) in [
        (outside.path().to_str().unwrap(), "read-only"),
        ("/etc", "read-only"),
        ("/no-such-place", "read-only"),
        (allowed, "full"),
    ] {
        let (status, answer) = up.post_as(&keys[0], "/api/dispatches", &body(dir, mode)).await;
        assert_eq!(
            (status, answer["code"].as_str().unwrap()),
            (400, "policy_violation"),
            "{answer}"
        );
    }
    assert_eq!(row_counts(&sql).await, before);
    let sent = body(allowed, "read-only");
    let (status, made) = up.post_as(&keys[0], "/api/dispatches", &sent).await;
    assert_eq!(status, 201, "{made}");
    let id = made["id"].as_str().unwrap();
    for (method, path) in [
        ("GET", format!("/api/dispatches/{id}")),
        ("GET", format!("/api/dispatches/{id}/output")),
        ("GET", format!("/api/dispatches/tokens?id={id}")),
        ("POST", format!("/api/dispatches/{id}/kill")),
        ("POST", format!("/api/dispatches/{id}/retry")),
    ] {
        let sent = (method == "POST").then(|| b"{}".to_vec());
        let (status, answer) = up.request(method, &path, Some(&keys[1]), sent).await;
        assert_eq!(status, 404, "{method} {path}: {answer}");
    }
    let (_, seen) = up.get_as(&keys[1], "/api/dispatches").await;
    assert_eq!(seen, json!([]));
    let all = json!({"older_than_sec": 0});
    let (_, pruned) = up.post_as(&keys[1], "/api/dispatches/prune", &all).await;
    assert_eq!(pruned, json!({"pruned": 0}));
}

#[tokio::test(flavor = "multi_thread")]
async fn both_forms_of_every_flag_mean_the_same() {
    let home = Home::new();
    let up = home.up();
    let dir = tempfile::tempdir().unwrap();
    let prompt = dir.path().join("prompt.md");
    std::fs::write(&prompt, "echo said\n").unwrap();
    std::fs::write(dir.path().join("spec.json"), "{\"max_turns\":3}").unwrap();
    let (prompt, project) = (prompt.to_str().unwrap(), dir.path().to_str().unwrap());
    let spec = format!("@{project}/spec.json");
    let flags = [
        ("--prompt-file", prompt),
        ("--type", "command"),
        ("--project", project),
        ("--output", &format!("{project}/out.txt")),
        ("--name", "n"),
        ("--model", "m"),
        ("--sandbox", "read-only"),
        ("--sandbox-spec", &spec),
        ("--scope-id", "s"),
        ("--timeout", "60"),
    ];
    let mut views = Vec::new();
    for joined in [true, false] {
        let mut line =
            vec!["dispatch".to_owned(), "spawn".into(), "--json".into(), "--scheduled".into()];
        for (name, value) in flags {
            match joined {
                true => line.push(format!("{name}={value}")),
                false => line.extend([name.to_owned(), value.to_owned()]),
            }
        }
        let line: Vec<&str> = line.iter().map(String::as_str).collect();
        let made = home.run_json(&line);
        let keys: Vec<&String> = made.as_object().unwrap().keys().collect();
        assert_eq!(keys, ["id", "job_id", "pid", "scheduled"]);
        let id = text(&made, "id");
        let wrote = dir.path().join(format!("wrote-{joined}"));
        let named = match joined {
            true => vec![format!("--output={}", wrote.display())],
            false => vec!["--output".to_owned(), wrote.display().to_string()],
        };
        let mut line = vec!["dispatch", "wait", &id];
        line.extend(named.iter().map(String::as_str));
        let output = home.run(&line);
        assert_eq!(output.status.code(), Some(0), "{}", said(&output));
        assert_eq!(std::fs::read_to_string(wrote).unwrap(), "said\n");
        assert!(!dir.path().join("out.txt").exists(), "the recorded path is only recorded");
        views.push(home.run_json(&["dispatch", "status", &id, "--json"]));
    }
    assert_alike(&views);
    let shown = home.run(&["dispatch", "status", views[0]["id"].as_str().unwrap()]);
    let text = String::from_utf8(shown.stdout).unwrap();
    assert!(text.contains("requested") && text.contains("max_turns"), "{text}");
    let listed = home.run_json(&["dispatch", "list", "--scope-id=s", "--json"]);
    assert_eq!(listed["dispatches"].as_array().unwrap().len(), 2, "{listed}");
    let pruned = home.run_json(&["dispatch", "prune", "--older-than=0", "--json"]);
    assert_eq!(pruned, json!({"schemaVersion": 1, "pruned": 2}));
    drop(up);
}

/// Nothing that was given is missing, and both say the same.
fn assert_alike(views: &[Value]) {
    for field in [
        "id",
        "agent_type",
        "status",
        "project_dir",
        "turns",
        "commands",
        "messages",
        "in_tokens",
        "out_tokens",
        "created_at",
    ] {
        assert!(!views[0][field].is_null(), "{field}: {}", views[0]);
    }
    for field in [
        "agent_type",
        "project_dir",
        "name",
        "model",
        "sandbox",
        "sandbox_spec",
        "scope_id",
        "timeout_sec",
    ] {
        assert_eq!(views[0][field], views[1][field], "{field}");
        assert!(!views[0][field].is_null(), "{field}");
    }
}
