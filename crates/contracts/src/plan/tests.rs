//! What a recipe becomes.

use super::*;
use crate::template::GlobError;
use serde_json::json;

fn compile(recipe: &Recipe, form: &Value, glob: Globber<'_>) -> Result<Plan, Refusal> {
    super::compile(recipe, form, &Settings::default(), glob).map_err(CompileError::refusal)
}

fn tenant() -> crate::id::TenantId {
    crate::id::TenantId::parse("acme").unwrap()
}

#[test]
fn a_profile_fills_what_is_left_out_and_its_version_is_in_the_plan() {
    let yaml = "id: p\nv: '1'\nplan:\n  tasks:\n    - {name: a, profile: rust, limits: {pids: 9}, build: {run: make}, exec: {run: x}}\n    - {name: b, build: {run: make, timeout: go}, exec: {run: x, timeout: 7s}}\n";
    let plan = compile(&recipe(yaml), &json!({}), &none).unwrap();
    let (Work::Sandbox(a), Work::Sandbox(b)) = (&plan.tasks[0].work, &plan.tasks[1].work) else {
        panic!()
    };
    assert_eq!((a.timeout_ms, a.build.as_ref().unwrap().timeout_ms), (1_200_000, Some(1_800_000)));
    assert_eq!((a.limits.pids, a.limits.mem_mb), (Some(9), Some(4_096)));
    assert_eq!((b.timeout_ms, b.build.as_ref().unwrap().timeout_ms), (7_000, Some(900_000)));
    assert_eq!(b.limits.mem_mb, None);
    let used: Vec<String> = plan.config.iter().map(ToString::to_string).collect();
    assert_eq!(used, ["profile.rust by default", "profile.go by default"]);
    let row = crate::config::ConfigRow {
        key: "profile.go".parse().unwrap(),
        scope: crate::config::ConfigScope::Tenant,
        version: 2,
        value: json!({"buildTimeoutMs": 900_000, "execTimeoutMs": 1, "limits": {}}),
    };
    let settings = crate::config::settings(&[row], &tenant()).unwrap();
    let other = super::compile(&recipe(yaml), &json!({}), &settings, &none).unwrap();
    assert_eq!(other.tasks, plan.tasks, "the numbers are the same");
    assert_ne!(other.digest().unwrap(), plan.digest().unwrap(), "the version is not");
}

#[test]
fn what_is_above_a_ceiling_is_refused_by_whose_it_is() {
    let row = crate::config::ConfigRow {
        key: crate::config::ConfigKey::Ceiling,
        scope: crate::config::ConfigScope::Global,
        version: 3,
        value: json!({"timeoutMs": 60_000, "limits": {"memMB": 1_000}}),
    };
    let settings = crate::config::settings(&[row], &tenant()).unwrap();
    let refused = |task: &str| {
        let yaml = format!("id: p\nv: '1'\nplan: {{tasks: [{task}]}}\n");
        let plan = super::compile(&recipe(&yaml), &json!({}), &settings, &none);
        plan.map(|plan| plan.config).map_err(CompileError::refusal)
    };
    for (task, field) in [
        ("{name: a, limits: {memMB: 1001}, exec: {run: x}}", "limits.memMB"),
        ("{name: a, exec: {run: x, timeout: 61s}}", "timeoutMs"),
        ("{name: a, build: {run: b, timeout: 2m}, exec: {run: x}}", "build.timeoutMs"),
    ] {
        let refusal = refused(task).unwrap_err();
        assert_eq!(refusal.code, ErrorCode::PolicyViolation, "{task}");
        assert!(refusal.message.contains("limits.ceiling of the host, version 3"), "{refusal}");
        assert_eq!(refusal.details.unwrap()["metric"], field);
    }
    let used = refused("{name: a, profile: rust, build: {run: b}, exec: {run: x}}").unwrap();
    let used: Vec<String> = used.iter().map(ToString::to_string).collect();
    assert_eq!(used, ["limits.ceiling of the host, version 3", "profile.rust by default"]);
}

fn none(_: &str, _: &str) -> Result<Vec<String>, GlobError> {
    Ok(vec!["a.txt".into(), "b.txt".into()])
}

fn recipe(yaml: &str) -> Recipe {
    Recipe::from_yaml("t.yaml", yaml).unwrap()
}

const SHARDS: &str = r#"
id: t
v: "1"
form: {type: object, properties: {n: {type: integer, default: 2}, repo: {type: string}}}
caps: {steps: 4}
plan:
  tasks:
    - name: shard-${item}
      each: ${range(form.n)}
      files: [{from: "${form.repo}", to: /work, access: workspace-write}]
      exec: {run: "echo $${SHARD}", env: {SHARD: "${item}"}, timeout: python}
"#;

#[test]
fn a_fan_out_yields_one_task_an_item() {
    let plan = compile(&recipe(SHARDS), &json!({"n": 3, "repo": "/r"}), &none).unwrap();
    assert_eq!(plan.tasks.len(), 3);
    let Work::Sandbox(r) = &plan.tasks[2].work else { panic!() };
    assert_eq!(r.env["SHARD"], "2");
    assert_eq!(r.cmd[2], "echo ${SHARD}");
    assert_eq!(r.files_in[0].uri.as_deref(), Some("host:///r"));
    assert_eq!(r.timeout_ms, 300_000);
}

#[test]
fn the_same_input_gives_the_same_digest_and_keys_differ_by_attempt() {
    let form = json!({"n": 1, "repo": "/r"});
    let a = compile(&recipe(SHARDS), &form, &none).unwrap();
    assert_eq!(
        a.digest().unwrap(),
        compile(&recipe(SHARDS), &form, &none).unwrap().digest().unwrap()
    );
    let intent = IntentId::parse(&format!("it_{}", "0".repeat(32))).unwrap();
    let run = RunId::parse(&format!("rn_{}", "0".repeat(32))).unwrap();
    let task = &a.tasks[0];
    assert_ne!(task.key(&intent, &run, 1).unwrap(), task.key(&intent, &run, 2).unwrap());
}

#[test]
fn a_plan_over_its_caps_is_refused_with_metric_limit_and_observed() {
    let err = compile(&recipe(SHARDS), &json!({"n": 5, "repo": "/r"}), &none).unwrap_err();
    assert_eq!(err.code, ErrorCode::QueuePolicyViolation);
    assert_eq!(err.details.unwrap()["observed"], 5);
}

#[test]
fn a_builds_lock_file_becomes_the_tasks_cache() {
    let yaml = r#"
id: deps
v: "1"
plan:
  tasks:
    - name: short
      build: {run: install, cache: lock.txt}
      exec: {run: work}
    - name: long
      cache: {repo: "lib-${index}", paths: [a.lock], dirs: [/opt/deps]}
      build: {run: install, cache: b.lock}
      exec: {run: work}
    - {name: plain, build: {run: install}, exec: {run: work}}
"#;
    let one = |yaml: &str| compile(&recipe(yaml), &json!({}), &none);
    let plan = one(&yaml.replace("${index}", "x")).unwrap();
    let cache = |n: usize| {
        let Work::Sandbox(r) = &plan.tasks[n].work else { panic!() };
        r.spec.as_ref().and_then(|spec| serde_json::to_value(spec.cache.as_ref()?).ok())
    };
    // Whose base it is says its source, never the recipe.
    assert_eq!(cache(0), Some(json!({"paths": ["lock.txt"]})));
    let long = json!({"repo": "lib-x", "paths": ["a.lock", "b.lock"], "dirs": ["/opt/deps"]});
    assert_eq!(cache(1), Some(long));
    assert_eq!(cache(2), None);
    let unbuilt = yaml.replace("      build: {run: install, cache: b.lock}\n", "");
    assert!(Recipe::from_yaml("t.yaml", &unbuilt).unwrap_err().message.contains("cache"));
}

#[test]
fn h6_a_plan_that_would_be_too_large_is_refused_while_it_is_rendered() {
    let refused = |yaml: &str, form: &Value| {
        let error = compile(&recipe(yaml), form, &none).unwrap_err();
        assert_eq!(error.code, ErrorCode::QueuePolicyViolation, "{error}");
        error.details.unwrap()["metric"].as_str().unwrap().to_owned()
    };
    let form = "form: {type: object, properties: {s: {type: string}}}\ncaps: {steps: 10000}\n";
    let one = |value: &str, each: &str| {
        format!(
            "id: t\nv: '1'\n{form}plan: {{tasks: [{{name: 'a-${{index}}', each: '${{range({each})}}', {value}}}]}}\n"
        )
    };
    let s = json!({"s": "y".repeat(4_000)});
    let many = "${form.s}".repeat(200);
    assert_eq!(refused(&one(&format!("value: '{many}'"), "256"), &s), "rendered_plan_bytes");
    let much = "${form.s}".repeat(20_000);
    assert_eq!(refused(&one(&format!("value: '{much}'"), "1"), &s), "rendered_text_bytes");
    // Lists of names are cloned for each item without being rendered.
    let names: Vec<String> = (0..64).map(|n| format!("{}-{n}.example", "n".repeat(50))).collect();
    let exec = format!("exec: {{run: x, egress: [{}]}}", names.join(", "));
    assert_eq!(refused(&one(&exec, "10000"), &s), "rendered_plan_bytes");
    compile(&recipe(&one("exec: {run: 'echo ${item}'}", "10000")), &s, &none).unwrap();
}

#[test]
fn equal_names_and_relative_paths_are_refused() {
    let twice = SHARDS.replace("shard-${item}", "shard");
    assert!(compile(&recipe(&twice), &json!({"n": 2, "repo": "/r"}), &none).is_err());
    let err = compile(&recipe(SHARDS), &json!({"n": 1, "repo": "r"}), &none).unwrap_err();
    assert!(err.message.contains("not an absolute path"), "{err}");
}
