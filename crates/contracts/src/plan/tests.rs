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
    assert!(err.message.contains("neither an absolute path"), "{err}");
}

/// A pipeline's plan, which runs do not follow yet.
fn graph_of(yaml: &str, form: &Value) -> Result<Plan, Refusal> {
    let recipe = Recipe::from_yaml("p.yaml", yaml)?;
    super::compiled(&recipe, form, &Settings::default(), &none).map_err(CompileError::refusal)
}

const PIPELINE: &str = r#"
id: p
v: "1"
form: {type: object, properties: {kind: {type: string}}}
plan:
  fail_fast: true
  tasks:
    - name: build
      exec: {run: make}
      artifacts: ["dist/**"]
      outputs: out.json
    - name: test-${item.name}
      id: test
      each: ${tasks.build.outputs.shards}
      files:
        - {text: static, to: /work/a}
        - {from: "task://build/dist/**", to: /work/dist}
        - {text: "v=${tasks.build.outputs.version}", to: /work/v}
      exec: {run: "t ${item.name | sh} ${tasks.build.outputs.version | sh} ${form.kind | sh}", env: {N: "${index}/${count}"}}
    - name: Say it
      value: "${form.kind}"
      needs: [test]
      when: {all: [{task: test, is: ended}, {any: [{value: "${tasks.build.outputs.kind}", is: release}, {value: "${form.kind}", is: x}]}]}
"#;

#[test]
fn a_pipeline_has_groups_and_late_parts() {
    let plan = graph_of(PIPELINE, &json!({"kind": "a ${form.kind}"})).unwrap();
    let graph = plan.graph.as_ref().unwrap();
    let text = serde_json::to_value(graph).unwrap();
    assert!(graph.fail_fast);
    let names: Vec<&str> = graph.groups.iter().map(|group| group.name.as_str()).collect();
    assert_eq!(names, ["build", "test", "task-3"]);
    assert_eq!(text["groups"][1]["needs"], json!(["build"]), "what it uses, it needs");
    assert_eq!(text["groups"][2]["needs"], json!(["build", "test"]));
    assert_eq!(
        text["groups"][2]["when"]["all"][1],
        json!({"any": [
            {"value": {"value": [{"output": {"of": {"task": "build", "name": "kind"}}}], "is": "release"}},
            {"value": {"value": [{"text": "a ${form.kind}"}], "is": "x"}},
        ]})
    );
    let members: Vec<_> =
        plan.tasks.iter().map(|task| task.group.as_ref().unwrap().as_str()).collect();
    assert_eq!(members, ["build", "task-3"], "what an output makes is not there yet");
    let fanout = graph.groups[1].fanout.as_ref().unwrap();
    assert_eq!(fanout.task.files[0].glob, "dist/**");
    let items = [json!({"name": "it's"}), json!({"name": "${form.kind}"})];
    let mut left = 10_000;
    let tasks = super::late::expanded(fanout, &items, &mut left).unwrap();
    assert!(left < 10_000 && super::late::expanded(fanout, &items, &mut 100).is_err());
    assert_eq!(
        (tasks[0].name.as_str(), tasks[1].name.as_str()),
        ("test-it's", "test-${form.kind}")
    );
    let outputs =
        crate::task_outputs::parse(b"version='; rm -rf / #", crate::task_outputs::OutputsKind::Env);
    let values =
        crate::late::OutputValues::from([(graph.groups[0].name.clone(), outputs.unwrap())]);
    let work = super::late::filled(&tasks[0].work, &tasks[0].late, &values).unwrap();
    let request = work.request().unwrap();
    assert_eq!(request.cmd[2], r"t 'it'\''s' ''\''; rm -rf / #' 'a ${form.kind}'");
    assert_eq!(request.env["N"], "0/2");
    assert_eq!(request.files_in[1].inline.as_deref(), Some("v='; rm -rf / #"));
    let shown = super::late::readable(&fanout.task.work, &fanout.task.late);
    assert!(
        shown.request().unwrap().cmd[2]
            .starts_with("t ${item.name | sh} ${tasks.build.outputs.version | sh} ")
    );
    let again: Plan = serde_json::from_value(serde_json::to_value(&plan).unwrap()).unwrap();
    assert_eq!(again, plan);
}

#[test]
fn a_matrix_is_every_combination_in_the_order_of_its_names() {
    let yaml = "id: m\nv: '1'\nplan:\n  tasks:\n    - name: t-${matrix.py}-${matrix.os}\n      id: t\n      matrix: {py: [3.9, '4'], os: [b, a]}\n      value: ${index}/${count}\n";
    let plan = compile(&recipe(yaml), &json!({}), &none).unwrap();
    let names: Vec<&str> = plan.tasks.iter().map(|task| task.name.as_str()).collect();
    assert_eq!(names, ["t-3.9-b", "t-4-b", "t-3.9-a", "t-4-a"]);
    assert!(plan.graph.is_none() && plan.tasks[3].work == Work::Value("3/4".into()));
    let text = serde_json::to_value(&plan.tasks[0]).unwrap();
    assert_eq!(
        text,
        json!({"name": "t-3.9-b", "work": {"value": "0/4"}}),
        "a matrix alone adds nothing"
    );
}

/// Bytes of a plan before there were graphs: a plan that uses none keeps its digest.
#[test]
fn plans_without_a_graph_keep_their_bytes() {
    let yaml = "id: t\nv: '1'\nplan:\n  tasks:\n    - {name: 'a${item}', each: [1, 2], value: 'v${item}'}\n    - {name: b, value: w}\n";
    let plan = compile(&recipe(yaml), &json!({}), &none).unwrap();
    let hash = recipe(yaml).hash().unwrap();
    let text = String::from_utf8(crate::canonical::canonical(&plan).unwrap()).unwrap();
    let tasks = r#"[{"name":"a1","work":{"value":"v1"}},{"name":"a2","work":{"value":"v2"}},{"name":"b","work":{"value":"w"}}]"#;
    assert_eq!(
        text,
        format!(
            r#"{{"caps":{{"concurrency":8,"sandbox_minutes":60,"steps":256}},"recipeHash":"{hash}","recipeRef":{{"id":"t","v":"1"}},"tasks":{tasks}}}"#
        )
    );
    assert_eq!(hash.as_str(), crate::canonical::digest(&json!({
        "id": "t", "v": "1", "caps": {"concurrency": 8, "steps": 256, "sandbox_minutes": 60},
        "plan": {"tasks": [
            {"name": "a${item}", "each": [1, 2], "value": "v${item}", "limits": {}}, {"name": "b", "value": "w", "limits": {}},
        ]},
    })).unwrap().as_str());
}

/// The work of task `b` with this output `v` of task `a`.
fn with_output(fields: &str, output: &str) -> Result<Work, crate::late::LateFault> {
    let yaml = format!(
        "id: p\nv: '1'\nplan:\n  tasks:\n    - {{name: a, exec: {{run: x}}, outputs: o.env}}\n    - name: b\n      {fields}\n"
    );
    let plan = graph_of(&yaml, &json!({})).unwrap();
    let text = format!("v={output}");
    let outputs =
        crate::task_outputs::parse(text.as_bytes(), crate::task_outputs::OutputsKind::Env).unwrap();
    let of = plan.graph.as_ref().unwrap().groups[0].name.clone();
    let values = crate::late::OutputValues::from([(of, outputs)]);
    super::late::filled(&plan.tasks[1].work, &plan.tasks[1].late, &values)
}

#[test]
fn an_output_in_a_build_stands_behind_the_checkout_of_its_repository() {
    let commit = "a".repeat(40);
    for (run, at, want) in [
        ("[cat, '${tasks.a.outputs.v}']", 8, "one two"),
        ("'cat ${tasks.a.outputs.v | sh}'", 9, "cat 'one two'"),
    ] {
        let fields = format!(
            "repo: {{path: /src, commit: {commit}}}\n      build: {{run: {run}}}\n      exec: {{run: x}}"
        );
        let work = with_output(&fields, "one two").unwrap();
        let cmd = &work.request().unwrap().build.as_ref().unwrap().cmd;
        assert_eq!((cmd[1].as_str(), cmd[at].as_str()), ("-c", want), "{cmd:?}");
        assert!(cmd[2].contains("git"), "the checkout is as it was: {}", cmd[2]);
    }
}

#[test]
fn an_output_is_no_option() {
    let run = |argv: &str, output: &str| with_output(&format!("exec: {{run: {argv}}}"), output);
    let output = "--checkpoint-action=exec=x";
    let refused = run("[tar, xf, '${tasks.a.outputs.v}']", output).unwrap_err();
    assert_eq!(refused, crate::late::LateFault::Option(2));
    for (argv, output) in [
        ("[tar, xf, '${tasks.a.outputs.v}']", "a.tar"),
        ("[rm, --, '${tasks.a.outputs.v}']", output),
        ("[x, '${tasks.a.outputs.v}']", "-1.5"),
    ] {
        assert!(run(argv, output).is_ok(), "{argv} {output}");
    }
}

#[test]
fn what_a_pipeline_may_not_say_is_refused_with_line_and_column() {
    let task = |fields: &str| {
        format!(
            "id: p\nv: '1'\nplan:\n  tasks:\n    - {{name: a, exec: {{run: x}}, artifacts: [x], outputs: o.json}}\n    - name: b\n      {fields}\n"
        )
    };
    for (fields, at, word) in [
        (
            "exec: {run: x}\n      needs: [a, z]",
            "p.yaml:8:18: plan.tasks[1].needs[1]",
            "no task has the id \"z\"",
        ),
        (
            "exec: {run: x}\n      needs: [b]",
            "p.yaml:8:15: plan.tasks[1].needs[0]",
            "cannot wait for itself",
        ),
        (
            "exec: {run: \"x ${tasks.a.outputs.v}\"}",
            "p.yaml:7:14: plan.tasks[1].exec.run",
            "stands unquoted",
        ),
        (
            "exec: {run: \"${tasks.a.outputs.v}\"}",
            "p.yaml:7:14: plan.tasks[1].exec.run",
            "stands unquoted",
        ),
        (
            "exec: {run: \"x ${tasks.a.outputs.v | raw}\"}",
            "p.yaml:7:14: plan.tasks[1].exec.run",
            "would make shell text",
        ),
        (
            "exec: {run: [x, '${tasks.a.outputs.v | raw}']}",
            "p.yaml:7:14: plan.tasks[1].exec.run",
            "would make shell text",
        ),
        (
            "exec: {run: [x, 'a${tasks.a.outputs.v}']}",
            "p.yaml:7:14: plan.tasks[1].exec.run",
            "part of a larger argument",
        ),
        (
            "exec: {run: x}\n      image: 'image:${tasks.a.outputs.v}'",
            "p.yaml:8:7: plan.tasks[1].image",
            "known only when",
        ),
        (
            "exec: {run: x, env: {LD_PRELOAD: '${tasks.a.outputs.v}'}}",
            "p.yaml:7:22: plan.tasks[1].exec.env",
            "LD_PRELOAD",
        ),
        (
            "exec: {run: x}\n      each: [1]\n      matrix: {a: [1]}",
            "p.yaml:9:7: plan.tasks[1].matrix",
            "cannot be combined",
        ),
        (
            "exec: {run: x}\n      outputs: ../o.env",
            "p.yaml:8:7: plan.tasks[1].outputs",
            "must be a path, not a glob, below",
        ),
        (
            "exec: {run: x}\n      retry: {max: 11}",
            "p.yaml:8:15: plan.tasks[1].retry.max",
            "must be 0 to 10",
        ),
        (
            "exec: {run: x}\n      files: [{from: 'task://a/../x', to: /x}]",
            "p.yaml:8:16: plan.tasks[1].files[0].from",
            "names no files",
        ),
    ] {
        let error = Recipe::from_yaml("p.yaml", &task(fields)).unwrap_err().message;
        assert!(error.starts_with(at) && error.contains(word), "{error}");
    }
}

#[test]
fn an_output_is_no_code_of_a_build_and_a_fan_out_has_none() {
    for (fields, word) in [
        ("build: {run: x, env: {BASH_ENV: '${tasks.a.outputs.v}'}}", "build.env: `${tasks.a"),
        ("each: [1]\n      outputs: o.env", "outputs: a fan-out's cannot be named"),
    ] {
        let yaml = format!(
            "id: p\nv: '1'\nplan:\n  tasks:\n    - {{name: a, exec: {{run: x}}, outputs: o.env}}\n    - name: b\n      exec: {{run: x}}\n      {fields}\n"
        );
        let error = Recipe::from_yaml("p.yaml", &yaml).unwrap_err().message;
        assert!(error.contains(word), "{error}");
    }
}

#[test]
fn tasks_that_wait_for_each_other_are_refused_with_line_and_column() {
    let cycle = "id: p\nv: '1'\nplan:\n  tasks:\n    - {name: a, value: x, needs: [b]}\n    - {name: b, value: x, needs: [a]}\n";
    let error = Recipe::from_yaml("p.yaml", cycle).unwrap_err().message;
    assert_eq!(
        error,
        "p.yaml:5:35: plan.tasks[0].needs[0]: the tasks wait for each other: a -> b -> a"
    );
}
