//! The escape self-test: a sandbox holds, and a weakened one is seen to be weak.

use crate::support;

use std::collections::BTreeSet;

use cofferdam_sandbox::{Class, SelfTest, self_test_in, self_test_of, self_test_plan};
use serde_json::{Value, json};
use support::{here, with_bench, with_runtime};

/// Fewer would be no list worth the name.
const MIN_PROBES: usize = 250;

fn holds(test: &SelfTest) {
    let surprises: Vec<_> = test.surprises().collect();
    assert!(surprises.is_empty(), "{surprises:#?}");
    assert!(test.probes.len() >= MIN_PROBES, "{}", test.probes.len());
    let ids: BTreeSet<&str> = test.probes.iter().map(|probe| probe.id.as_str()).collect();
    assert_eq!(ids.len(), test.probes.len(), "an id is given twice");
    for area in [
        "control",
        "mounts",
        "devices",
        "proc",
        "sys",
        "namespaces",
        "capabilities",
        "seccomp",
        "ptrace",
        "keyrings",
        "network",
        "neighbours",
    ] {
        assert!(test.probes.iter().any(|probe| probe.area == area), "{area}");
    }
    assert!(test.is_wiped(), "{:#?}", test.wipes);
}

/// The ids that report a difference after the plan was changed.
fn weakened(weaken: impl FnOnce(&mut Value)) -> BTreeSet<String> {
    let (ids, is_wiped) = outcome(weaken);
    assert!(is_wiped);
    ids
}

fn outcome(weaken: impl FnOnce(&mut Value)) -> (BTreeSet<String>, bool) {
    let mut is_wiped = false;
    let mut ids = BTreeSet::new();
    with_bench(|bench| {
        let (ids, is_wiped) = (&mut ids, &mut is_wiped);
        async move {
            let mut plan = self_test_plan(&bench.host).unwrap();
            weaken(&mut plan.config);
            let test = self_test_of(&bench.host, &plan).await.unwrap();
            *is_wiped = test.is_wiped();
            ids.extend(test.surprises().map(|probe| probe.id.clone()));
        }
    });
    (ids, is_wiped)
}

fn all_of(ids: &BTreeSet<String>, wanted: &[&str]) {
    let missing: Vec<_> = wanted.iter().filter(|id| !ids.contains(**id)).collect();
    assert!(missing.is_empty(), "not seen: {missing:?} in {ids:?}");
}

/// Neither as a list nor as a program.
fn without_filter(config: &mut Value) {
    config["linux"].as_object_mut().unwrap().remove("seccomp");
    config.as_object_mut().unwrap().remove("annotations");
}

#[test]
fn every_probe_finds_a_sandbox_of_crun_to_hold() {
    with_runtime(Some("crun"), |bench| async move {
        let plan = self_test_plan(&bench.host).unwrap();
        holds(&self_test_of(&bench.host, &plan).await.unwrap());
    });
}

#[test]
fn a3f2_every_probe_finds_a_second_life_after_hostile_changes_of_its_root_to_hold() {
    with_runtime(Some("crun"), |bench| async move {
        let test = self_test_in(&bench.host, Class::Container).await.unwrap();
        holds(&test);
        let again = test.probes.iter().filter(|probe| probe.id.starts_with("again."));
        assert_eq!(
            again.count() * 2,
            test.probes.len() + 1,
            "all of them, and one that is refused"
        );
    });
}

#[test]
fn every_probe_finds_a_sandbox_of_runc_to_hold() {
    with_runtime(Some("runc"), |bench| async move {
        let plan = self_test_plan(&bench.host).unwrap();
        holds(&self_test_of(&bench.host, &plan).await.unwrap());
    });
}

#[test]
fn every_probe_finds_a_sandbox_of_gvisor_to_hold() {
    in_class(Class::Gvisor);
}

#[test]
fn every_probe_finds_a_machine_to_hold() {
    in_class(Class::Microvm);
}

fn in_class(class: Class) {
    with_bench(|bench| async move {
        if bench.has_class(class) {
            holds(&self_test_in(&bench.host, class).await.unwrap());
        }
    });
}

#[test]
fn every_probe_finds_a_container_of_a_docker_engine_to_hold() {
    let mut is_present = false;
    with_bench(|bench| {
        is_present = bench.has_class(Class::Docker);
        std::future::ready(())
    });
    if is_present {
        here(Some("docker"), |bench| async move {
            holds(&self_test_in(&bench.host, Class::Docker).await.unwrap());
        });
    }
}

#[test]
fn without_the_system_call_filter_its_probes_report_it_and_no_others() {
    let ids = weakened(|config| {
        without_filter(config);
    });
    all_of(&ids, &["seccomp.mode", "ns.new-user", "net.packet", "keyring.session"]);
    for area in ["control.", "device.", "neighbour.", "cap.", "proc."] {
        assert!(!ids.iter().any(|id| id.starts_with(area)), "{ids:?}");
    }
}

#[test]
fn with_every_capability_and_no_filter_mounts_devices_and_the_agent_are_reached() {
    let ids = weakened(|config| {
        let all: Vec<String> = [
            "CHOWN",
            "DAC_OVERRIDE",
            "DAC_READ_SEARCH",
            "FOWNER",
            "FSETID",
            "KILL",
            "MKNOD",
            "NET_ADMIN",
            "NET_RAW",
            "SETGID",
            "SETUID",
            "SYS_ADMIN",
            "SYS_CHROOT",
            "SYS_NICE",
            "SYS_PTRACE",
        ]
        .iter()
        .map(|name| format!("CAP_{name}"))
        .collect();
        for set in ["bounding", "effective", "permitted"] {
            config["process"]["capabilities"][set] = json!(all);
        }
        without_filter(config);
    });
    all_of(
        &ids,
        &[
            "mount.tmpfs",
            "mount.bind",
            "mount.umount",
            "mount.fsopen",
            "mount.open-tree",
            "mount.pivot-root",
            "mount.chroot",
            "cap.effective",
            "cap.bounding",
            "cap.hostname",
            "ns.new-mount",
            "ns.new-net",
            "ns.join",
            "net.raw",
            "ptrace.seize",
            "proc.agent-root",
            "proc.agent-memory",
            "seccomp.io-uring",
        ],
    );
}

#[test]
fn without_masked_and_read_only_paths_the_kernel_is_seen() {
    let ids = weakened(|config| {
        let linux = config["linux"].as_object_mut().unwrap();
        linux.remove("maskedPaths");
        linux.remove("readonlyPaths");
    });
    // Settings of the host stay unwritable where root inside is not the host's.
    all_of(
        &ids,
        &["read:/proc/interrupts", "read:/proc/kallsyms", "write:/proc/sys/kernel/msgmax"],
    );
    assert!(!ids.iter().any(|id| id.starts_with("mount.") || id.starts_with("net.")), "{ids:?}");
}

// The host's pid namespace is not tried: there the agent's sweep after a command would be the host's.
// What depends on it is shown by the unit tests of the probes, outside any sandbox.
#[test]
fn in_the_hosts_network_the_host_is_reached() {
    // On the neighbour's port; if somebody else has it, it answers just as well.
    let _server = std::net::TcpListener::bind(("127.0.0.1", 47_013));
    let (ids, is_wiped) = outcome(|config| {
        let namespaces = config["linux"]["namespaces"].as_array_mut().unwrap();
        namespaces.retain(|namespace| namespace["type"] != "network");
    });
    all_of(&ids, &["ns.net", "net.host-loopback", "net.host-abstract", "neighbour.port"]);
    assert!(!is_wiped, "a network namespace that others are in is not gone");
}

#[test]
fn where_the_hosts_directory_of_sandboxes_is_shown_it_and_the_neighbour_are_found() {
    with_bench(|bench| async move {
        let live = bench.host.facts().live_dir.clone();
        let mut plan = self_test_plan(&bench.host).unwrap();
        let shown = json!({"destination": live, "type": "bind", "source": live,
                           "options": ["bind", "ro"]});
        plan.config["mounts"].as_array_mut().unwrap().push(shown);
        let test = self_test_of(&bench.host, &plan).await.unwrap();
        let ids = test.surprises().map(|probe| probe.id.clone()).collect();
        all_of(&ids, &["mount.host-state", "neighbour.layer"]);
    });
}
