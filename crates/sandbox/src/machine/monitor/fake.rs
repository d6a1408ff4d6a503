//! The fake monitor of the tests, which is named so: no host of ours runs one of the two, which need KVM.
//!
//! ```text
//! test -> provision -> driver -> fake -> shapes, order -> QEMU, where there is one and a kernel
//!                       disk <------------- vhost-user ----|
//!                       stream <--- a port, or vsock ------+
//! ```
//! `published.json` was written by hand from `src/firecracker/swagger/firecracker.yaml` (1.17.0-dev) and
//! `vmm/src/api/openapi/cloud-hypervisor.yaml` (0.3.0).

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use cofferdam_ambient::random;
use cofferdam_contracts::id::SandboxId;
use cofferdam_guest::setup;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::super::kernel::MODULES;
use super::super::qemu;
use super::*;
use crate::not_run::not_run;
use crate::spec::class::{Class, Offer};
use crate::spec::machine::Accel;
use crate::{Host, HostConfig, enter_private_mounts};

const PROGRAM: &str = include_str!("fake.py");
const PUBLISHED: &str = include_str!("published.json");
/// With it the stream is one: it makes the device that QEMU has no part of its own for.
const VSOCK: &str = "/usr/local/bin/vhost-device-vsock";

/// A fake in a directory of its own.
pub struct Fake {
    kind: Kind,
    dir: TempDir,
}

impl Fake {
    pub fn new(kind: Kind, mode: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        // Its user is nobody, who must find it and write down what it is asked.
        fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
        let fake = Self { kind, dir };
        let published: Value = serde_json::from_str(PUBLISHED).unwrap();
        let shapes = published[kind.program()].to_string();
        for (name, text, bits) in [
            ("fake", PROGRAM, 0o755),
            ("asked", "", 0o666),
            ("mode", mode, 0o444),
            ("shapes", &shapes, 0o444),
        ] {
            fs::write(fake.path(name), text).unwrap();
            fs::set_permissions(fake.path(name), Permissions::from_mode(bits)).unwrap();
        }
        fake
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// From now on it starts machines by QEMU.
    pub fn with_machines(&self, machine: &Machine) {
        let emulated = Machine {
            accel: Accel::Software { why: "there is no KVM".to_owned() },
            ..machine.clone()
        };
        let line = qemu::kernel_line(&emulated);
        let vsock = Path::new(VSOCK).exists().then_some(VSOCK);
        let how = json!({
            "qemu": runtime::search("qemu-system-x86_64").unwrap(),
            "line": line.strip_prefix(qemu::KERNEL_LINE).unwrap(),
            "vsock": vsock,
            "port": setup::STREAM,
            "name": setup::PORT,
        });
        fs::write(self.path("qemu.json"), how.to_string()).unwrap();
    }

    /// Whether the stream of its machines is the one of a real monitor's.
    pub fn has_stream() -> bool {
        Path::new(VSOCK).exists()
    }

    pub fn asked(&self) -> Vec<Value> {
        let asked = fs::read_to_string(self.path("asked")).unwrap();
        asked.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

/// Of which nothing is started.
pub fn no_machine() -> Machine {
    let nothing = PathBuf::from("/dev/null");
    Machine {
        kernel: nothing.clone(),
        release: "0".to_owned(),
        initrd: nothing,
        accel: Accel::Kvm,
        tsc_khz: None,
        unshare: runtime::search("unshare").unwrap(),
        setpriv: runtime::search("setpriv").unwrap(),
    }
}

/// A host that is left whatever becomes of its test.
pub struct TestHost {
    pub host: Host,
    pub state: TempDir,
}

impl Drop for TestHost {
    fn drop(&mut self) {
        self.host.leave();
    }
}

impl TestHost {
    pub fn new() -> Self {
        enter_private_mounts().unwrap();
        let state = tempfile::tempdir().unwrap();
        let config = HostConfig { state_dir: state.path().to_owned(), ..HostConfig::default() };
        Self { host: Host::detect(config).unwrap(), state }
    }

    /// A machine that QEMU can be told to start as a monitor is; `None` where there is none, which is
    /// said.
    pub fn machine(&self) -> Option<Machine> {
        let facts = self.host.facts();
        // A stream where the fake has one, and a port in its place: whatever it is, the driver finds it.
        let modules = if Fake::has_stream() { &STREAM_MODULES[..] } else { &MODULES[..] };
        let prepared = Machine::prepared(&facts.state_dir, &facts.guest, modules, Form::Plain);
        match (prepared, runtime::search("qemu-system-x86_64")) {
            (Ok(machine), Some(_)) => Some(machine),
            (Err((why, _)), _) => {
                not_run("a machine of a fake monitor", &why);
                None
            }
            (_, None) => {
                not_run("a machine of a fake monitor", "there is no QEMU");
                None
            }
        }
    }

    /// Where the class is held by a fake, and a plan of it.
    pub fn plan(&mut self, fake: &Fake, machine: Machine) -> Plan {
        self.host = self.host.with_facts(|facts| {
            facts.machine = Some(machine);
            for fact in facts.classes.iter_mut().filter(|fact| fact.class == Class::Microvm) {
                fact.offer = Offer::Present(Runtime {
                    name: fake.kind.program().to_owned(),
                    path: fake.path("fake"),
                    version: "fake".to_owned(),
                    sealed: None,
                });
            }
        });
        let request = json!({
            "envRef": "host", "cmd": ["true"], "timeoutMs": 60_000,
            "limits": {"memMB": 128, "diskMB": 8, "pids": 32},
            "spec": {"isolation": {"class_min": "microvm"}},
        });
        let id = SandboxId::parse(&format!("sb{}", random::secret_hex(10))).unwrap();
        let request = serde_json::from_value(request).unwrap();
        crate::plan(&request, &id, self.host.facts()).unwrap()
    }
}
