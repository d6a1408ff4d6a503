//! Firecracker, from 1.6 on: each part of a machine is put in its place, then an action starts it.

use serde_json::{Value, json};

use super::call::MonitorCall;
use super::machine_spec::{CID, DISK, INITRD, KERNEL, MachineSpec, Monitor, SOCKET, STREAM};
use crate::machine::qemu::KERNEL_LINE;

/// As many processors as it gives a machine.
const MAX_CPUS: u32 = 32;

#[derive(Debug)]
pub(super) struct Firecracker;

impl Monitor for Firecracker {
    fn args(&self) -> [&'static str; 2] {
        ["--api-sock", SOCKET]
    }

    fn greeting(&self) -> MonitorCall {
        MonitorCall::get("/")
    }

    fn version<'a>(&self, answer: &'a Value) -> Option<&'a str> {
        answer.get("vmm_version")?.as_str()
    }

    fn start(&self, told: &MachineSpec) -> Vec<MonitorCall> {
        let cpus = told.shape.cpus.min(MAX_CPUS);
        vec![
            MonitorCall::put(
                "/machine-config",
                json!({"vcpu_count": cpus, "mem_size_mib": told.shape.mem_mb}),
            ),
            MonitorCall::put(
                "/boot-source",
                json!({
                    "kernel_image_path": KERNEL,
                    "initrd_path": INITRD,
                    "boot_args": KERNEL_LINE,
                }),
            ),
            // Whether it is written to is the server's word.
            MonitorCall::put(
                "/drives/disk",
                json!({"drive_id": "disk", "is_root_device": false, "socket": DISK}),
            ),
            MonitorCall::put("/vsock", json!({"guest_cid": CID, "uds_path": STREAM})),
            MonitorCall::put("/actions", json!({"action_type": "InstanceStart"})),
        ]
    }
}
