//! The drivers of both monitors against a fake one: what it is told, one that fails, and a machine.

use std::time::Duration;

use cofferdam_contracts::sandbox::{ErrCode, WipeEvidence, WipeStatus};
use serde_json::json;

use super::call::{MonitorCall, call};
use super::fake::{Fake, TestHost, no_machine};
use super::*;
use crate::machine::qemu::KERNEL_LINE;
use crate::not_run::not_run;
use crate::{Command as Task, Sandbox, provision};

/// More than a monitor needs in every way in which a fake fails.
const PATIENCE: Duration = Duration::from_secs(30);

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap()
}

fn wiped(evidence: &WipeEvidence) {
    let bad: Vec<_> = evidence.checks.iter().filter(|check| !check.ok).collect();
    assert_eq!(evidence.status, WipeStatus::Verified, "{bad:?}");
}

/// Why no machine comes of it, in words.
fn trial_of(fake: &Fake, kind: Kind) -> String {
    tried(kind, &fake.path("fake"), &no_machine(), Duration::from_secs(2)).unwrap_err()
}

#[test]
fn firecracker_is_told_its_machine_as_its_description_says() {
    let kind = Kind::Firecracker;
    let fake = Fake::new(kind, "");
    assert_eq!(trial_of(&fake, kind), "it said nothing within 2000 ms");
    assert_eq!(
        fake.asked(),
        [
            json!(["GET", "/", null]),
            json!(["PUT", "/machine-config", {"vcpu_count": 1, "mem_size_mib": 192}]),
            json!(["PUT", "/boot-source", {
                "kernel_image_path": "/proc/self/fd/3",
                "initrd_path": "/proc/self/fd/4",
                "boot_args": KERNEL_LINE,
            }]),
            json!(["PUT", "/drives/disk", {
                "drive_id": "disk", "is_root_device": false, "socket": "disk",
            }]),
            json!(["PUT", "/vsock", {"guest_cid": 3, "uds_path": "stream"}]),
            json!(["PUT", "/actions", {"action_type": "InstanceStart"}]),
        ]
    );
}

#[test]
fn cloud_hypervisor_is_told_its_machine_as_its_description_says() {
    let kind = Kind::CloudHypervisor;
    let fake = Fake::new(kind, "");
    assert_eq!(trial_of(&fake, kind), "it said nothing within 2000 ms");
    let mut asked = fake.asked();
    // Its number is this process's own.
    let memory = asked[1][2]["memory"]["zones"][0]["file"].take();
    assert!(memory.as_str().unwrap().starts_with("/proc/self/fd/"), "{memory}");
    assert_eq!(
        asked,
        [
            json!(["GET", "/api/v1/vmm.ping", null]),
            json!(["PUT", "/api/v1/vm.create", {
                "cpus": {"boot_vcpus": 1, "max_vcpus": 1},
                "memory": {"size": 0, "zones": [{
                    "id": "memory", "size": 201_326_592, "shared": true, "file": null,
                }]},
                "payload": {
                    "kernel": "/proc/self/fd/3",
                    "initramfs": "/proc/self/fd/4",
                    "cmdline": KERNEL_LINE,
                },
                "disks": [{"vhost_user": true, "vhost_socket": "disk"}],
                "vsock": {"cid": 3, "socket": "stream"},
                "serial": {"mode": "Tty"},
                "console": {"mode": "Off"},
            }]),
            json!(["PUT", "/api/v1/vm.boot", null]),
        ]
    );
}

/// So that what the drivers say is known to be held against something.
#[test]
fn the_fake_refuses_what_is_not_published_and_what_comes_too_early() {
    let fake = Fake::new(Kind::Firecracker, "");
    let mut server = std::process::Command::new(fake.path("fake"))
        .args(["--api-sock", "api"])
        .current_dir(fake.path(""))
        .spawn()
        .unwrap();
    let refused = runtime().block_on(async {
        let clock = cofferdam_ambient::clock::Stopwatch::start();
        while !fake.path("api").exists() {
            assert!(clock.elapsed_ms() < 20_000, "it does not listen");
            cofferdam_ambient::clock::sleep(Duration::from_millis(10)).await;
        }
        let mut said = Vec::new();
        for wanted in [
            MonitorCall::put("/drive", json!({})),
            MonitorCall::put("/vsock", json!({"guest_cid": 3})),
            MonitorCall::put("/vsock", json!({"guest_cid": "3", "uds_path": "stream"})),
            MonitorCall::put("/vsock", json!({"guest_cid": 3, "uds_path": "stream", "more": 1})),
            MonitorCall::put("/actions", json!({"action_type": "InstanceStart"})),
        ] {
            said.push(call(&fake.path("api"), &wanted).await.unwrap_err());
        }
        said
    });
    server.kill().unwrap();
    server.wait().unwrap();
    assert_eq!(
        refused,
        [
            "PUT /drive is not known",
            "PUT /vsock has no uds_path",
            "PUT /vsock.guest_cid is no int",
            "PUT /vsock has an unknown more",
            "it is started before it is described",
        ]
    );
}

/// Each is the failure of a start, with its words, and leaves nothing.
#[test]
fn a_monitor_that_fails_in_any_way_is_a_failed_boot_with_its_words_and_a_verified_wipe() {
    let mut ground = TestHost::new();
    for (mode, words) in [
        ("refuse", "/machine-config was refused: this fake refuses"),
        ("die", "this fake dies"),
        ("hang", "/machine-config was refused: it was silent"),
        ("deaf", "it did not listen within"),
        ("early", "this fake does not start"),
        ("malformed", "/ was not answered: EOF while parsing"),
    ] {
        let fake = Fake::new(Kind::Firecracker, mode);
        let plan = ground.plan(&fake, no_machine());
        let started = runtime().block_on(async {
            tokio::time::timeout(PATIENCE, provision(&ground.host, &plan, &[])).await
        });
        let error = started.expect(mode).unwrap_err();
        assert_eq!(error.code, ErrCode::BootFail, "{mode}");
        assert!(error.message.contains(words), "{mode}: {}", error.message);
        wiped(&error.evidence);
        assert!(!plan.traces.dir.exists(), "{mode}");
    }
}

async fn sh(sandbox: &Sandbox, plan: &Plan, script: &str) -> (Option<i32>, String) {
    let task =
        Task { argv: ["/bin/sh", "-c", script].map(str::to_owned).to_vec(), ..plan.task.clone() };
    let mut said = Vec::new();
    let outcome = sandbox.exec(&task, |_, bytes| said.extend_from_slice(bytes)).await.unwrap();
    (Some(outcome.exit), String::from_utf8_lossy(&said).into_owned())
}

/// A file of many megabytes that every host shows to its machines.
const LARGE: &str = "/usr/bin/python3";

fn a_machine_of(kind: Kind) {
    let mut ground = TestHost::new();
    let Some(machine) = ground.machine() else { return };
    let fake = Fake::new(kind, "");
    fake.with_machines(&machine);
    let plan = ground.plan(&fake, machine);
    let large = std::fs::read(LARGE).unwrap();
    let digest = cofferdam_contracts::canonical::digest_bytes(&large);
    runtime().block_on(async {
        let started = provision(&ground.host, &plan, &[]).await;
        let sandbox = started.unwrap_or_else(|error| panic!("{}", error.message));
        println!("a machine of a fake {} after {} ms", kind.program(), sandbox.boot().boot_ms);
        assert_eq!(sandbox.effective().runtime, kind.program());
        let (exit, said) = sh(&sandbox, &plan, &format!("uname -r; sha256sum {LARGE}")).await;
        let release = &ground.host.facts().machine.as_ref().unwrap().release;
        assert_eq!((exit, said), (Some(0), format!("{release}\n{}  {LARGE}\n", digest.as_str())));
        // The disk is not to be written to, and its layer is.
        let script = "echo new > /usr/new; cat /usr/new; echo mine > /work/mine && cat /work/mine";
        assert!(sh(&sandbox, &plan, script).await.1.ends_with("mine\n"));
        if Fake::has_stream() {
            // 40 is the family of the stream, and 1 the one of this host's own sockets.
            let open = "for f in 40 1; do perl -e 'socket(my $s, shift, 1, 0) ? print \"made \" : \
                        print $! + 0, \" \"' $f; done";
            assert_eq!(sh(&sandbox, &plan, open).await.1, "97 made ");
        } else {
            not_run("a machine's stream", "there is no vhost-device-vsock");
        }
        let names: Vec<_> = fs::read_dir(plan.traces.dir.join(DIR))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        assert!(!names.iter().any(|name| name.starts_with("stream_")), "{names:?}");
        wiped(&sandbox.wipe("task-end").await);
        assert!(!plan.traces.dir.exists());
    });
}

#[test]
fn a_machine_of_a_fake_firecracker_runs_a_command_and_is_wiped() {
    a_machine_of(Kind::Firecracker);
}

#[test]
fn a_machine_of_a_fake_cloud_hypervisor_runs_a_command_and_is_wiped() {
    a_machine_of(Kind::CloudHypervisor);
}

#[test]
fn what_is_asked_for_and_cannot_be_had_is_absent_with_why_and_what_helps() {
    let ground = TestHost::new();
    let facts = ground.host.facts();
    for kind in Kind::ALL {
        let found = detect(kind, &facts.state_dir, &facts.guest);
        match (runtime::search(kind.program()), found) {
            (None, Err((why, remedy))) => {
                assert_eq!(why, format!("{} was not found", kind.program()));
                assert!(remedy.contains(&format!("--runtime {}", kind.program())), "{remedy}");
            }
            (Some(_), Err((why, _))) => assert!(why.starts_with(kind.program()), "{why}"),
            (found, Ok(_)) => assert!(found.is_some()),
        }
        // Asked for, it is never QEMU in its place.
        let config = crate::HostConfig {
            state_dir: ground.state.path().to_owned(),
            runtime: Some(kind.program().to_owned()),
            ..crate::HostConfig::default()
        };
        let host = crate::Host::detect(config).unwrap();
        let fact = host.facts().classes.iter().find(|fact| fact.class == crate::Class::Microvm);
        match &fact.unwrap().offer {
            crate::Offer::Present(found) => assert_eq!(found.name, kind.program()),
            crate::Offer::Absent { why, .. } => assert!(why.contains(kind.program()), "{why}"),
        }
        host.leave();
    }
}

/// They would keep the memory of what was wiped as long as the machine lives.
#[test]
fn m5_a_machines_mounts_hold_no_copy_of_another_sandboxs() {
    crate::enter_private_mounts().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let layer = dir.path().join("a b/sandboxes/sb0/layer");
    std::fs::create_dir_all(&layer).unwrap();
    crate::host::mounts::mount_tmpfs(&layer, 1).unwrap();
    let (machine, nothing) = (no_machine(), Path::new("/dev/null"));
    let files = [nothing, nothing];
    let hold = LauncherCommand {
        machine: &machine,
        groups: &[],
        open: "",
        files,
        writes_nothing: None,
        named: None,
    };
    let mut command = launcher::command(&hold);
    let said = command.args(["cat", "/proc/self/mountinfo"]).as_std_mut().output().unwrap();
    let mounts = String::from_utf8(said.stdout).unwrap();
    assert!(mounts.contains(" /proc ") && !mounts.contains("sandboxes"), "{mounts}");
    let own = std::fs::read_to_string("/proc/thread-self/mountinfo").unwrap();
    assert!(own.contains("sandboxes/sb0/layer"));
    crate::host::mounts::unmount(&layer).unwrap();
}
