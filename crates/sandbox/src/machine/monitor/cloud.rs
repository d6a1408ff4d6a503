//! Cloud Hypervisor: a machine is described at once, then booted.

use hyper::Method;
use serde_json::{Value, json};

use super::call::MonitorCall;
use super::machine_spec::{CID, DISK, INITRD, KERNEL, MachineSpec, Monitor, SOCKET, STREAM};
use crate::machine::qemu::KERNEL_LINE;

const MIB: u64 = 1024 * 1024;

#[derive(Debug)]
pub(super) struct CloudHypervisor;

impl Monitor for CloudHypervisor {
    fn args(&self) -> [&'static str; 2] {
        ["--api-socket", SOCKET]
    }

    fn greeting(&self) -> MonitorCall {
        MonitorCall::get("/api/v1/vmm.ping")
    }

    fn version<'a>(&self, answer: &'a Value) -> Option<&'a str> {
        answer.get("version")?.as_str()
    }

    fn start(&self, told: &MachineSpec) -> Vec<MonitorCall> {
        let MachineSpec { shape, memory } = told;
        vec![
            MonitorCall::put(
                "/api/v1/vm.create",
                json!({
                    "cpus": {"boot_vcpus": shape.cpus, "max_vcpus": shape.cpus},
                    // Nothing promises that what it would make itself cannot be taken away from under the
                    // disk's server; what it is lent cannot.
                    "memory": {"size": 0, "zones": [{
                        "id": "memory",
                        "size": shape.mem_mb.saturating_mul(MIB),
                        "shared": true,
                        "file": memory,
                    }]},
                    "payload": {"kernel": KERNEL, "initramfs": INITRD, "cmdline": KERNEL_LINE},
                    "disks": [{"vhost_user": true, "vhost_socket": DISK}],
                    "vsock": {"cid": CID, "socket": STREAM},
                    // Its standard output, which is our log.
                    "serial": {"mode": "Tty"},
                    "console": {"mode": "Off"},
                }),
            ),
            MonitorCall { method: Method::PUT, path: "/api/v1/vm.boot", body: None },
        ]
    }
}
