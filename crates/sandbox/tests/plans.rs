//! What a plan refuses, by name, and what it decides. Pure: the facts are made up.

use cofferdam_contracts::artifact_glob;
use cofferdam_contracts::id::SandboxId;
use cofferdam_contracts::sandbox::{Egress, MAX_STREAM_BYTES, Phase, SandboxRequest};
use cofferdam_guest::glob::Glob;
use cofferdam_sandbox::{
    AllowedPaths, Ceilings, CgroupMode, Cgroups, Class, ClassFact, Hierarchy, HostFacts,
    LargeLayers, Offer, Plan, PlanError, Program, Programs, Runtime, Tcp, plan,
};
use serde_json::{Value, json};

fn runtime(name: &str) -> Runtime {
    Runtime {
        name: name.into(),
        path: format!("/usr/bin/{name}").into(),
        version: "1".into(),
        sealed: None,
    }
}

fn classes(present: &[(&str, &str)]) -> Vec<ClassFact> {
    let offer = |class: Class| match present.iter().find(|(name, _)| *name == class.as_str()) {
        Some((_, name)) => Offer::Present(runtime(name)),
        None => Offer::Absent { why: "it is not there".into(), remedy: "get it".into() },
    };
    Class::ALL.map(|class| ClassFact { class, offer: offer(class) }).into()
}

fn without_fscrypt() -> LargeLayers {
    LargeLayers::Absent { why: "no fscrypt here".into(), remedy: "another kernel".into() }
}

fn facts() -> HostFacts {
    let controllers = ["memory", "pids", "cpu"].map(str::to_owned).to_vec();
    let tree = Hierarchy { mount: "/sys/fs/cgroup".into(), controllers, unified: true };
    HostFacts {
        state_dir: "/state".into(),
        live_dir: "/live".into(),
        allowed: AllowedPaths::resolved(&["/srv/allowed".into()], Vec::new()),
        runtime: runtime("crun"),
        provider: None,
        classes: classes(&[("container", "crun")]),
        machine: None,
        cgroups: Cgroups { mode: CgroupMode::V2, hierarchies: vec![tree] },
        kernel: "6".into(),
        cpus: 4,
        mem_mb: 8_192,
        pids: 4_096,
        nofile: 65_536,
        nofile_most: 524_288,
        ceilings: Ceilings {
            signals: 4_096,
            queue_bytes: 409_600,
            files: 1 << 40,
            tcp: Tcp::Counted,
            socket_bytes: 262_144,
        },
        empty: "/state/base/empty".into(),
        ids: Err("none here".into()),
        swap: false,
        large: without_fscrypt(),
        private_mounts: true,
        base: "/state/base/host-1".into(),
        base_digest: None,
        guest: "/state/guest/1".into(),
        polling_guest: "/state/guest/poll".into(),
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
    for (field, changes) in [fields(), services(), specs()].concat() {
        match planned(changes.clone()) {
            Err(error) => assert_eq!(error.field, field, "{changes}: {error}"),
            Ok(_) => panic!("{changes} was planned"),
        }
    }
}

/// Of the request and its limits: the field that is named, and what it is changed to.
fn fields() -> Vec<(&'static str, Value)> {
    let file = |fields: Value| json!({"filesIn": [fields]});
    vec![
        ("cmd", json!({"cmd": []})),
        ("cmd", json!({"cmd": ["a\0b"]})),
        ("env", json!({"env": {"A=B": "x"}})),
        ("envRef", json!({"envRef": "docker:latest"})),
        ("envRef", json!({"envRef": "dir:/etc"})),
        ("envRef", json!({"envRef": "dir:/srv/allowed/../../etc"})),
        ("timeoutMs", json!({"timeoutMs": 0})),
        ("timeoutMs", json!({"timeoutMs": 86_400_001})),
        ("workdir", json!({"workdir": "work"})),
        ("workdir", json!({"workdir": "/a/../b"})),
        ("artifacts[0]", json!({"artifacts": ["../x"]})),
        ("artifacts[1]", json!({"artifacts": ["ok", "/etc/passwd"]})),
        ("reports[1]", json!({"reports": ["ok.xml", {"path": "../x", "kind": "tap"}]})),
        ("reports", json!({"reports": vec!["x"; 21]})),
        ("filesIn[0].path", file(json!({"path": "/a/../b", "inline": ""}))),
        ("filesIn[0].inline", file(json!({"path": "/a"}))),
        ("filesIn[0].access", file(json!({"path": "/a", "inline": "", "access": "full"}))),
        ("build.cmd", json!({"build": {"cmd": []}})),
        ("build.timeoutMs", json!({"build": {"cmd": ["true"], "timeoutMs": 0}})),
        ("limits.cpu", json!({"limits": {"cpu": 5.0}})),
        ("limits.cpu", json!({"limits": {"cpu": 0.001}})),
        ("limits.memMB", json!({"limits": {"memMB": 8_193}})),
        ("limits.memMB", json!({"limits": {"memMB": 1}})),
        ("limits.pids", json!({"limits": {"pids": 0}})),
        ("limits.pids", json!({"limits": {"pids": 4_097}})),
        ("limits.diskMB", json!({"limits": {"diskMB": 9_000}})),
        ("limits.outputBytes", json!({"limits": {"outputBytes": 0}})),
        ("limits.outputBytes", json!({"limits": {"output_bytes": MAX_STREAM_BYTES + 1}})),
        ("limits.nofile", json!({"limits": {"nofile": 63}})),
        ("limits.nofile", json!({"limits": {"nofile": 524_289}})),
        (
            "spec.limits.nofile",
            json!({"limits": {"nofile": 64}, "spec": {"limits": {"nofile": 65}}}),
        ),
    ]
}

fn services() -> Vec<(&'static str, Value)> {
    let service = |fields: Value| json!({"spec": {"services": [fields]}});
    vec![
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
    ]
}

/// Of a spec, its services excepted.
fn specs() -> Vec<(&'static str, Value)> {
    let mount = |source: &str, target: &str, access: &str| json!({"spec": {"mounts": [{"source": source, "target": target, "access": access}]}});
    vec![
        ("spec.tools_allowed", json!({"spec": {"tools_allowed": ["x"]}})),
        ("spec.tools_denied", json!({"spec": {"tools_denied": []}})),
        ("spec.commands", json!({"spec": {"commands": {}}})),
        ("spec.max_turns", json!({"spec": {"max_turns": 1}})),
        ("spec.max_commands", json!({"spec": {"max_commands": 1}})),
        ("spec.cache", json!({"spec": {"cache": {"repo": "b", "paths": ["l"]}}})),
        ("spec.isolation.class_min", json!({"spec": {"isolation": {"class_min": "gvisor"}}})),
        ("spec.access_mode", json!({"spec": {"access_mode": "full"}})),
        ("spec.access_mode", json!({"spec": {"access_mode": "read-only"}})),
        ("spec.image", json!({"spec": {"image": "debian"}})),
        ("spec.working_dir", json!({"workdir": "/a", "spec": {"working_dir": "/b"}})),
        ("spec.limits.pids", json!({"limits": {"pids": 1}, "spec": {"limits": {"pids": 2}}})),
        ("spec.phases.build.egress", json!({"spec": {"phases": {"build": {"egress": ["a.b"]}}}})),
        ("spec.phases.build.timeout_ms", json!({"spec": {"phases": {"build": {"timeout_ms": 5}}}})),
        ("spec.phases.exec.egress", json!({"spec": {"phases": {"exec": {"egress": ["a.b"]}}}})),
        (
            "spec.phases.exec.egress",
            json!({"net": ["a.b"], "spec": {"phases": {"exec": {"egress": "none"}}}}),
        ),
        ("spec.phases.exec.timeout_ms", json!({"spec": {"phases": {"exec": {"timeout_ms": 5}}}})),
        ("spec.mounts[0].source", mount("a", "/b", "read-only")),
        ("spec.mounts[0].target", mount("/a", "/", "read-only")),
        ("spec.mounts[0].access", mount("/srv/allowed", "/b", "full")),
    ]
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
        (Some(4.0), Some(512), Some(256), Some(384)),
    );
    assert_eq!((limits.output_bytes, limits.nofile), (Some(MAX_STREAM_BYTES), Some(65_536)));
    let nofile = &plan.config["process"]["rlimits"][1];
    assert_eq!((&nofile["soft"], &nofile["hard"]), (&json!(1_024), &json!(65_536)));
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
fn open_files_and_output_are_what_was_asked_for() {
    let asked = json!({"limits": {"nofile": 200_000, "output_bytes": 1_000}});
    let plan = planned(asked).unwrap();
    assert_eq!(plan.effective.limits.nofile, Some(200_000));
    assert_eq!((plan.stream_limit_bytes, plan.effective.limits.output_bytes), (1_000, Some(1_000)));
    let nofile = &plan.config["process"]["rlimits"][1];
    assert_eq!((&nofile["soft"], &nofile["hard"]), (&json!(200_000), &json!(200_000)));
}

#[test]
fn a_name_that_is_not_exact_is_no_part_of_a_request() {
    for changes in [
        json!({"net": ["*.example.org"]}),
        json!({"net": ["example.org", "192.0.2.1"]}),
        json!({"net": ["example.org:443"]}),
        json!({"net": ["@maven"]}),
        json!({"build": {"cmd": ["true"], "net": ["localhost"]}}),
    ] {
        let mut request = json!({"envRef": "host", "cmd": ["true"], "timeoutMs": 1_000});
        for (name, value) in changes.as_object().unwrap() {
            request[name] = value.clone();
        }
        let error = serde_json::from_value::<SandboxRequest>(request).unwrap_err().to_string();
        let listed = changes.to_string().contains("@maven");
        let word = if listed { "unknown mirror" } else { "is not an exact domain name" };
        assert!(error.contains(word), "{changes}: {error}");
    }
}

#[test]
fn names_of_each_phase_are_recorded_as_asked() {
    let plan = planned(json!({
        "net": ["example.org"],
        "build": {"cmd": ["make"], "net": ["@pip", "a.example"]},
        "spec": {"phases": {
            "build": {"egress": ["@pip", "a.example"]}, "exec": {"egress": ["example.org"]},
        }},
    }))
    .unwrap();
    assert_eq!(plan.effective.egress, Egress::Names(vec!["example.org".parse().unwrap()]));
    let build = Egress::Names(vec!["@pip".parse().unwrap(), "a.example".parse().unwrap()]);
    assert_eq!(plan.effective.build_egress, build);
    let phases = (plan.build.unwrap().phase, plan.task.phase);
    assert_eq!(phases, (Phase::Build, Phase::Exec));
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

fn wanting(class_min: &str, present: &[(&str, &str)]) -> Result<Plan, PlanError> {
    wanting_on(HostFacts { classes: classes(present), ..facts() }, class_min)
}

fn wanting_on(facts: HostFacts, class_min: &str) -> Result<Plan, PlanError> {
    let request: SandboxRequest = serde_json::from_value(json!({
        "envRef": "host", "cmd": ["true"], "timeoutMs": 1,
        "spec": {"isolation": {"class_min": class_min}},
    }))
    .unwrap();
    plan(&request, &SandboxId::parse("sb00000000000000000001").unwrap(), &facts)
}

#[test]
fn the_cheapest_class_that_is_strong_enough_is_chosen_and_recorded() {
    let both = [("container", "crun"), ("gvisor", "runsc")];
    let plan = wanting("container", &both).unwrap();
    assert_eq!((plan.class, plan.effective.runtime.as_str()), (Class::Container, "crun"));
    let plan = wanting("gvisor", &both).unwrap();
    assert_eq!((plan.class, plan.effective.runtime.as_str()), (Class::Gvisor, "runsc"));
    assert_eq!(plan.effective.isolation_class, Class::Gvisor.strength());
    // Stronger than asked is allowed, weaker never.
    assert_eq!(wanting("container", &[("gvisor", "runsc")]).unwrap().class, Class::Gvisor);
    assert!(wanting("gvisor", &[("container", "crun"), ("docker", "docker")]).is_err());
    // Docker is as strong as a container and never chosen in its place, unless an operator did.
    assert!(wanting("container", &[("docker", "docker")]).is_err());
}

#[test]
fn a_worker_of_an_engine_gives_its_containers_and_nothing_in_their_place() {
    let asked = |class_min: &str, present: &[(&str, &str)]| {
        let mut engine = facts();
        engine.runtime.name = "docker".into();
        wanting_on(HostFacts { classes: classes(present), ..engine }, class_min)
    };
    let all = [("container", "crun"), ("gvisor", "runsc"), ("docker", "docker")];
    let plan = asked("container", &all).unwrap();
    assert_eq!((plan.class, plan.effective.runtime.as_str()), (Class::Docker, "docker"));
    assert_eq!(plan.effective.isolation_class, Class::Container.strength());
    assert_eq!(asked("gvisor", &all).unwrap().class, Class::Gvisor);
    assert!(asked("container", &[("container", "crun")]).is_err(), "no container of another kind");
}

#[test]
fn a_class_that_is_missing_is_refused_with_why_and_how_to_get_it() {
    for class in ["gvisor", "microvm", "remote"] {
        let error = wanting(class, &[("container", "crun")]).unwrap_err();
        assert_eq!(error.field, "spec.isolation.class_min");
        assert!(error.message.contains("remote: it is not there (get it)"), "{error}");
        assert_eq!(error.message.contains("microvm"), class != "remote", "{error}");
    }
}

#[test]
fn gvisor_has_a_least_memory_and_counts_processes_itself() {
    let facts =
        HostFacts { classes: classes(&[("container", "crun"), ("gvisor", "runsc")]), ..facts() };
    let id = SandboxId::parse("sb00000000000000000001").unwrap();
    let planned = |mem_mb: u64, pids: u64| {
        let request: SandboxRequest = serde_json::from_value(json!({
            "envRef": "host", "cmd": ["true"], "timeoutMs": 1,
            "limits": {"memMB": mem_mb, "pids": pids},
            "spec": {"isolation": {"class_min": "gvisor"}},
        }))
        .unwrap();
        plan(&request, &id, &facts)
    };
    assert_eq!(planned(95, 7).unwrap_err().field, "limits.memMB");
    assert_eq!(planned(96, 1_025).unwrap_err().field, "limits.pids");
    let plan = planned(96, 7).unwrap();
    let rlimits = plan.config["process"]["rlimits"].as_array().unwrap();
    assert!(rlimits.contains(&json!({"type": "RLIMIT_NPROC", "soft": 8, "hard": 8})));
    assert!(plan.effective.weak.iter().any(|text| text.contains("each user")));
}

#[test]
fn a_machine_has_a_bound_on_its_processes_and_nothing_to_write_through() {
    let facts = HostFacts {
        classes: classes(&[("container", "crun"), ("microvm", "qemu")]),
        pids: 4_000_000,
        allowed: AllowedPaths::resolved(&["/".into()], Vec::new()),
        ..facts()
    };
    let id = SandboxId::parse("sb00000000000000000001").unwrap();
    let refused = |changes: Value| {
        let mut request = json!({"envRef": "host", "cmd": ["true"], "timeoutMs": 1, "spec": {}});
        for (name, value) in changes.as_object().unwrap() {
            request[name] = value.clone();
        }
        request["spec"]["isolation"] = json!({"class_min": "microvm"});
        let request: SandboxRequest = serde_json::from_value(request).unwrap();
        plan(&request, &id, &facts).unwrap_err().field
    };
    assert_eq!(refused(json!({"limits": {"pids": 32_001}})), "limits.pids");
    let through = json!([{"path": "/work", "uri": "host:///srv/p", "access": "full"}]);
    assert_eq!(refused(json!({"filesIn": through})), "filesIn[0].access");
}

#[test]
fn services_are_decided_in_their_order() {
    let plan = planned(json!({"spec": {"services": [
        "postgres", {"name": "api", "cmd": ["serve"], "port": 80, "env": {"A": "b"}},
    ]}}))
    .unwrap();
    assert_eq!(plan.services[0].port, 5_432);
    assert_eq!(plan.services[0].program, Program::Postgres("/usr/lib/postgresql/15/bin".into()));
    let Program::Command { argv, env, .. } = &plan.services[1].program else { panic!("{plan:?}") };
    assert_eq!((argv.as_slice(), env["A"].as_str()), (["serve".to_owned()].as_slice(), "b"));
    assert!(env.contains_key("PATH"));
}

#[test]
fn a_layer_too_large_for_memory_is_refused_with_the_reason_where_it_cannot_be_encrypted() {
    let with = |disk_mb: u64, mem_mb: u64, large: LargeLayers| {
        let fields = json!({"envRef": "host", "cmd": ["true"], "timeoutMs": 1_000,
                            "limits": {"diskMB": disk_mb}});
        let request: SandboxRequest = serde_json::from_value(fields).unwrap();
        let id = SandboxId::parse("sb00000000000000000001").unwrap();
        plan(&request, &id, &HostFacts { mem_mb, large, ..facts() })
    };
    // In memory: 4 GiB, and never more than half of the host's.
    assert!(with(4_096, 16_384, without_fscrypt()).is_ok());
    assert!(with(1_024, 2_048, without_fscrypt()).is_ok());
    for (disk_mb, mem_mb) in [(4_097, 16_384), (1_025, 2_048)] {
        let refused = with(disk_mb, mem_mb, without_fscrypt()).unwrap_err();
        assert_eq!(refused.field, "limits.diskMB");
        assert!(refused.message.contains("no fscrypt here (another kernel)"), "{refused}");
    }
    let large = || LargeLayers::Present { mkfs: "/usr/sbin/mkfs.ext4".into(), most_mb: 50_000 };
    assert_eq!(with(50_000, 2_048, large()).unwrap().disk_mb, 50_000);
    let refused = with(50_001, 2_048, large()).unwrap_err();
    assert!(refused.message.contains("50000"), "{refused}");
}

/// Contracts judges globs before anything runs, the agent when it matches them: one rule, in two crates that share nothing.
#[test]
fn a_glob_that_a_recipe_may_have_is_one_that_the_agent_takes() {
    let long = "a".repeat(artifact_glob::MAX_GLOB_CHARS);
    let deep = vec!["a"; artifact_glob::MAX_GLOB_PARTS].join("/");
    for glob in [
        "a",
        "**",
        "logs/**",
        "a/*.xml",
        "..a/b",
        "/a",
        "../a",
        "a/..",
        "a/../b",
        "./a",
        "a/.",
        "a//b",
        "a/",
        "",
        "a\0b",
        "a b",
        &long,
        &format!("{long}a"),
        &deep,
        &format!("{deep}/a"),
    ] {
        let (ours, agents) = (artifact_glob::check(glob), Glob::parse(glob));
        assert_eq!(ours.is_ok(), agents.is_ok(), "{glob:?}: {ours:?}, {agents:?}");
    }
}
