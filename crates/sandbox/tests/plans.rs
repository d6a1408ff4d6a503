//! What a plan refuses, by name, and what it decides. Pure: the facts are made up.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a helper of tests fails its test"
)]

use cofferdam_contracts::id::SandboxId;
use cofferdam_contracts::sandbox::{MAX_STREAM_BYTES, SandboxRequest};
use cofferdam_sandbox::{
    CgroupMode, Cgroups, Hierarchy, HostFacts, Plan, PlanError, Program, Programs, Runtime, plan,
};
use serde_json::{Value, json};

fn facts() -> HostFacts {
    let controllers = ["memory", "pids", "cpu"].map(str::to_owned).to_vec();
    let tree = Hierarchy { mount: "/sys/fs/cgroup".into(), controllers, unified: true };
    HostFacts {
        state_dir: "/state".into(),
        live_dir: "/live".into(),
        allowed_roots: vec!["/srv/allowed".into()],
        runtime: Runtime {
            name: "crun".into(),
            path: "/usr/bin/crun".into(),
            version: "1".into(),
            sealed: None,
        },
        cgroups: Cgroups { mode: CgroupMode::V2, hierarchies: vec![tree] },
        kernel: "6".into(),
        cpus: 4,
        mem_mb: 8_192,
        pids: 4_096,
        nofile: 65_536,
        swap: false,
        private_mounts: true,
        base: "/state/base/host-1".into(),
        base_digest: None,
        guest: "/state/guest/1".into(),
        binds: vec!["/usr".into()],
        services: Programs { postgres: Some("/usr/lib/postgresql/15/bin".into()), redis: None },
    }
}

fn planned(changes: Value) -> Result<Plan, PlanError> {
    let mut request = json!({"envRef": "host", "cmd": ["true"], "timeoutMs": 1_000});
    for (name, value) in changes.as_object().unwrap() {
        request[name] = value.clone();
    }
    let request: SandboxRequest = serde_json::from_value(request).unwrap();
    let id = SandboxId::parse("sb00000000000000000001").unwrap();
    plan(&request, &id, &facts())
}

#[test]
fn every_field_that_cannot_be_enforced_is_refused_by_name() {
    let mount = |source: &str, target: &str, access: &str| json!({"spec": {"mounts": [{"source": source, "target": target, "access": access}]}});
    let service = |fields: Value| json!({"spec": {"services": [fields]}});
    let file = |fields: Value| json!({"filesIn": [fields]});
    for (field, changes) in [
        ("cmd", json!({"cmd": []})),
        ("cmd", json!({"cmd": ["a\0b"]})),
        ("env", json!({"env": {"A=B": "x"}})),
        ("envRef", json!({"envRef": "docker:latest"})),
        ("envRef", json!({"envRef": "dir:/etc"})),
        ("envRef", json!({"envRef": "dir:/srv/allowed/../../etc"})),
        ("timeoutMs", json!({"timeoutMs": 0})),
        ("timeoutMs", json!({"timeoutMs": 86_400_001})),
        ("net", json!({"net": ["example.org"]})),
        ("workdir", json!({"workdir": "work"})),
        ("workdir", json!({"workdir": "/a/../b"})),
        ("artifacts[0]", json!({"artifacts": ["../x"]})),
        ("artifacts[1]", json!({"artifacts": ["ok", "/etc/passwd"]})),
        ("filesIn[0].path", file(json!({"path": "/a/../b", "inline": ""}))),
        ("filesIn[0].inline", file(json!({"path": "/a"}))),
        ("filesIn[0].access", file(json!({"path": "/a", "inline": "", "access": "full"}))),
        ("build.cmd", json!({"build": {"cmd": []}})),
        ("build.net", json!({"build": {"cmd": ["true"], "net": ["@pip"]}})),
        ("build.timeoutMs", json!({"build": {"cmd": ["true"], "timeoutMs": 0}})),
        ("limits.cpu", json!({"limits": {"cpu": 5.0}})),
        ("limits.cpu", json!({"limits": {"cpu": 0.001}})),
        ("limits.memMB", json!({"limits": {"memMB": 8_193}})),
        ("limits.memMB", json!({"limits": {"memMB": 1}})),
        ("limits.pids", json!({"limits": {"pids": 0}})),
        ("limits.pids", json!({"limits": {"pids": 4_097}})),
        ("limits.diskMB", json!({"limits": {"diskMB": 9_000}})),
        ("spec.tools_allowed", json!({"spec": {"tools_allowed": ["x"]}})),
        ("spec.tools_denied", json!({"spec": {"tools_denied": []}})),
        ("spec.max_turns", json!({"spec": {"max_turns": 1}})),
        ("spec.max_commands", json!({"spec": {"max_commands": 1}})),
        ("spec.services", json!({"spec": {"services": vec![json!("postgres"); 9]}})),
        ("spec.services[0]", json!({"spec": {"services": ["redis"]}})),
        ("spec.services[0].cmd", json!({"spec": {"services": ["mongo"]}})),
        ("spec.services[0].cmd", service(json!({"name": "a", "cmd": [], "port": 1}))),
        ("spec.services[0].port", service(json!({"name": "a", "cmd": ["a"]}))),
        ("spec.services[0].port", service(json!({"name": "a", "cmd": ["a"], "port": 0}))),
        ("spec.services[0].name", service(json!({"name": "A b", "cmd": ["a"], "port": 1}))),
        ("spec.services[0].image", service(json!({"name": "postgres", "image": "postgres:16"}))),
        ("spec.services[0].env", service(json!({"name": "postgres", "env": {"A": "b"}}))),
        (
            "spec.services[0].health.timeout_ms",
            service(json!({"name": "postgres", "health": {"timeout_ms": 300_001}})),
        ),
        ("spec.services[1].name", json!({"spec": {"services": ["postgres", "postgres"]}})),
        (
            "spec.services[1].port",
            json!({"spec": {"services": ["postgres", {"name": "a", "cmd": ["a"], "port": 5432}]}}),
        ),
        (
            "spec.services[0]",
            json!({"envRef": "dir:/srv/allowed/root", "spec": {"services": ["postgres"]}}),
        ),
        ("spec.cache", json!({"spec": {"cache": {"org": "a", "repo": "b"}}})),
        ("spec.isolation.class_min", json!({"spec": {"isolation": {"class_min": "gvisor"}}})),
        ("spec.access_mode", json!({"spec": {"access_mode": "full"}})),
        ("spec.access_mode", json!({"spec": {"access_mode": "read-only"}})),
        ("spec.image", json!({"spec": {"image": "debian"}})),
        ("spec.working_dir", json!({"workdir": "/a", "spec": {"working_dir": "/b"}})),
        ("spec.limits.pids", json!({"limits": {"pids": 1}, "spec": {"limits": {"pids": 2}}})),
        ("spec.phases.build.egress", json!({"spec": {"phases": {"build": {"egress": ["a"]}}}})),
        ("spec.phases.build.timeout_ms", json!({"spec": {"phases": {"build": {"timeout_ms": 5}}}})),
        ("spec.phases.exec.egress", json!({"spec": {"phases": {"exec": {"egress": ["a"]}}}})),
        ("spec.phases.exec.timeout_ms", json!({"spec": {"phases": {"exec": {"timeout_ms": 5}}}})),
        ("spec.mounts[0].source", mount("a", "/b", "read-only")),
        ("spec.mounts[0].target", mount("/a", "/", "read-only")),
        ("spec.mounts[0].access", mount("/srv/allowed", "/b", "full")),
    ] {
        match planned(changes.clone()) {
            Err(error) => assert_eq!(error.field, field, "{changes}: {error}"),
            Ok(_) => panic!("{changes} was planned"),
        }
    }
}

#[test]
fn a_missing_controller_refuses_its_limit() {
    let mut facts = facts();
    facts.cgroups.hierarchies[0].controllers.retain(|name| name != "pids");
    let request: SandboxRequest =
        serde_json::from_value(json!({"envRef": "host", "cmd": ["true"], "timeoutMs": 1})).unwrap();
    let id = SandboxId::parse("sb00000000000000000001").unwrap();
    assert_eq!(plan(&request, &id, &facts).unwrap_err().field, "limits.pids");
}

#[test]
fn defaults_are_decided_and_recorded() {
    let plan = planned(json!({"env": {"PATH": "/x"}, "build": {"cmd": ["make"]}})).unwrap();
    let limits = plan.effective.limits;
    assert_eq!(
        (limits.cpu, limits.mem_mb, limits.pids, limits.disk_mb),
        (Some(4.0), Some(512), Some(256), Some(512)),
    );
    assert_eq!(plan.task.cwd, "/work");
    assert_eq!(plan.task.env["PATH"], "/x");
    assert_eq!(plan.task.env["HOME"], "/root");
    assert_eq!(plan.build.as_ref().unwrap().argv, ["make"]);
    assert_eq!(plan.stream_limit_bytes, MAX_STREAM_BYTES);
    assert_eq!(plan.config["linux"]["resources"]["memory"]["limit"], 512 * 1024 * 1024);
    assert_eq!(plan.config["linux"]["resources"]["memory"]["swap"], 512 * 1024 * 1024);
    assert_eq!(plan.config["linux"]["resources"]["pids"]["limit"], 257);
    assert!(plan.config["linux"]["resources"].get("cpu").is_none());
    assert!(plan.effective.weak.iter().any(|text| text.contains("user namespace")));
    assert_eq!(planned(json!({})).unwrap(), planned(json!({})).unwrap());
}

#[test]
fn a_spec_fills_what_the_request_leaves_open() {
    let plan = planned(json!({"spec": {
        "image": "host",
        "working_dir": "/repo",
        "limits": {"cpu": 0.5},
        "mounts": [{"source": "/srv/allowed/a", "target": "/a"}],
        "phases": {"exec": {"egress": "none", "timeout_ms": 1_000}},
        "isolation": {"class_min": "container"},
    }}))
    .unwrap();
    assert_eq!(plan.task.cwd, "/repo");
    assert_eq!(plan.mounts.len(), 1);
    assert_eq!(plan.config["linux"]["resources"]["cpu"]["quota"], 50_000);
}

#[test]
fn services_are_decided_in_their_order() {
    let plan = planned(json!({"spec": {"services": [
        "postgres", {"name": "api", "cmd": ["serve"], "port": 80, "env": {"A": "b"}},
    ]}}))
    .unwrap();
    assert_eq!(plan.services[0].port, 5_432);
    assert_eq!(plan.services[0].program, Program::Postgres("/usr/lib/postgresql/15/bin".into()));
    let Program::Command { argv, env } = &plan.services[1].program else { panic!("{plan:?}") };
    assert_eq!((argv.as_slice(), env["A"].as_str()), (["serve".to_owned()].as_slice(), "b"));
    assert!(env.contains_key("PATH"));
}
