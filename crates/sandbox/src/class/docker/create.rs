//! What the engine is told to make: the OCI configuration of the class `container`, in its words. Pure.

use std::collections::HashMap;

use bollard::models::{
    ContainerCreateBody, HostConfig, HostConfigLogConfig, ResourcesUlimits, RestartPolicy,
    RestartPolicyNameEnum,
};
use serde_json::Value;

use super::name;
use crate::host::guest::AGENT_PATH;
use crate::host::traces::Traces;

/// Whose sandbox a container is, for whoever finds it.
pub(super) const LABEL_SANDBOX: &str = "dev.cofferdam.sandbox";
pub(super) const LABEL_STATE: &str = "dev.cofferdam.state";
/// The runtime that every engine has; a default that somebody configured may hold its containers in
/// another way than by namespaces that a root can be put into.
const RUNTIME: &str = "runc";
/// `/dev/shm`, as in the class `container`.
const SHM_BYTES: i64 = 64 * 1024 * 1024;

/// Which of the state directories of this host: what its cgroups begin with.
pub(super) fn state_tag(traces: &Traces) -> String {
    let (name, id) = (name(traces), traces.id.as_str());
    name.strip_suffix(id).unwrap_or(&name).to_owned()
}

/// The container of this configuration.
pub(super) fn body(config: &Value, image: String, traces: &Traces) -> ContainerCreateBody {
    let labels = [(LABEL_SANDBOX, traces.id.to_string()), (LABEL_STATE, state_tag(traces))];
    ContainerCreateBody {
        image: Some(image),
        entrypoint: Some(vec![AGENT_PATH.to_owned()]),
        hostname: config.get("hostname").and_then(Value::as_str).map(str::to_owned),
        user: Some("0:0".to_owned()),
        working_dir: Some("/".to_owned()),
        labels: Some(labels.map(|(name, value)| (name.to_owned(), value)).into()),
        tty: Some(false),
        // The stream of one client is the agent's, and its end is the agent's end.
        open_stdin: Some(true),
        stdin_once: Some(true),
        attach_stdin: Some(true),
        attach_stdout: Some(true),
        attach_stderr: Some(true),
        stop_signal: Some("SIGKILL".to_owned()),
        host_config: Some(host_config(config)),
        ..ContainerCreateBody::default()
    }
}

fn host_config(config: &Value) -> HostConfig {
    let number = |path: &str| config.pointer(path).and_then(Value::as_i64);
    HostConfig {
        runtime: Some(RUNTIME.to_owned()),
        network_mode: Some("none".to_owned()),
        ipc_mode: Some("private".to_owned()),
        readonly_rootfs: Some(true),
        privileged: Some(false),
        cap_drop: Some(vec!["ALL".to_owned()]),
        cap_add: Some(strings(config.pointer("/process/capabilities/bounding"))),
        security_opt: Some(security(config)),
        masked_paths: Some(strings(config.pointer("/linux/maskedPaths"))),
        readonly_paths: Some(strings(config.pointer("/linux/readonlyPaths"))),
        memory: number("/linux/resources/memory/limit"),
        memory_swap: number("/linux/resources/memory/swap"),
        pids_limit: number("/linux/resources/pids/limit"),
        cpu_quota: number("/linux/resources/cpu/quota"),
        cpu_period: number("/linux/resources/cpu/period"),
        ulimits: Some(ulimits(config)),
        shm_size: Some(SHM_BYTES),
        init: Some(false),
        // The wipe removes it and looks whether it is gone.
        auto_remove: Some(false),
        restart_policy: Some(RestartPolicy {
            name: Some(RestartPolicyNameEnum::NO),
            ..RestartPolicy::default()
        }),
        // Or the engine would write the agent's stream, and with it the task's files, to a disk.
        log_config: Some(HostConfigLogConfig {
            typ: Some("none".to_owned()),
            config: Some(HashMap::new()),
        }),
        ..HostConfig::default()
    }
}

/// Its own default filter, which is not ours, holds where the configuration has none.
fn security(config: &Value) -> Vec<String> {
    let filter = config.pointer("/linux/seccomp").map(|filter| format!("seccomp={filter}"));
    ["no-new-privileges:true".to_owned()].into_iter().chain(filter).collect()
}

fn ulimits(config: &Value) -> Vec<ResourcesUlimits> {
    let all = config.pointer("/process/rlimits").and_then(Value::as_array);
    let limit = |one: &Value| {
        let name = one.get("type")?.as_str()?.strip_prefix("RLIMIT_")?.to_lowercase();
        let (soft, hard) = (one.get("soft")?.as_i64(), one.get("hard")?.as_i64());
        Some(ResourcesUlimits { name: Some(name), soft, hard })
    };
    all.into_iter().flatten().filter_map(limit).collect()
}

fn strings(list: Option<&Value>) -> Vec<String> {
    let all = list.and_then(Value::as_array).into_iter().flatten();
    all.filter_map(Value::as_str).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use cofferdam_contracts::id::SandboxId;
    use cofferdam_contracts::sandbox::Limits;
    use serde_json::json;

    use super::*;
    use crate::host::ceiling::{Ceilings, Tcp};
    use crate::oci;
    use crate::oci::{HostDirs, Nofile, OciInput};

    fn traces() -> Traces {
        let id = SandboxId::parse("sb00000000000000000001").unwrap();
        Traces::of(Path::new("/state"), Path::new("/run/live"), &id)
    }

    #[test]
    fn the_engine_is_told_what_an_oci_runtime_is_told_and_nothing_weaker() {
        let limits =
            Limits { cpu: Some(0.5), mem_mb: Some(100), pids: Some(7), ..Limits::default() };
        let binds: [PathBuf; 1] = ["/usr".into()];
        let shown = HostDirs::Apart { paths: &binds, empty: Path::new("/state/base/empty") };
        let ceilings = Ceilings {
            signals: 4_096,
            queue_bytes: 409_600,
            files: 1,
            tcp: Tcp::Counted,
            socket_bytes: 1,
        };
        let (root, cgroup) = (Path::new("/root"), Path::new("cofferdam/x"));
        let nofile = Nofile::exact(512);
        let config = oci::config(&OciInput {
            root,
            beside: root,
            cgroup,
            shown,
            limits,
            cpus: 2,
            ceilings,
            nofile,
            takes_program: false,
            needs: oci::calls::Needs { no_set_id: false, own_ids: false, roots: false },
        });
        let traces = traces();
        let said = serde_json::to_value(body(&config, "image".into(), &traces)).unwrap();
        let host = &said["HostConfig"];
        assert_eq!(host["CapDrop"], json!(["ALL"]));
        assert_eq!(host["CapAdd"], config["process"]["capabilities"]["bounding"]);
        assert_eq!(host["MaskedPaths"], config["linux"]["maskedPaths"]);
        assert_eq!(host["ReadonlyPaths"], config["linux"]["readonlyPaths"]);
        assert_eq!(host["SecurityOpt"][0], "no-new-privileges:true");
        let filter = host["SecurityOpt"][1].as_str().unwrap().strip_prefix("seccomp=").unwrap();
        let filter: Value = serde_json::from_str(filter).unwrap();
        assert_eq!(filter, config["linux"]["seccomp"]);
        for (field, value) in [
            ("NetworkMode", json!("none")),
            ("Memory", json!(104_857_600)),
            ("MemorySwap", json!(104_857_600)),
            ("PidsLimit", json!(8)),
            ("CpuQuota", json!(50_000)),
            ("CpuPeriod", json!(100_000)),
            ("ReadonlyRootfs", json!(true)),
            ("Privileged", json!(false)),
            ("Init", json!(false)),
            ("AutoRemove", json!(false)),
            ("Runtime", json!("runc")),
        ] {
            assert_eq!(host[field], value, "{field}");
        }
        assert_eq!(host["LogConfig"]["Type"], "none", "the stream is written to no disk");
        assert!(host.get("Binds").is_none() && host.get("Mounts").is_none());
        let open = json!({"Name": "nofile", "Soft": 512, "Hard": 512});
        assert!(host["Ulimits"].as_array().unwrap().contains(&open), "{host}");
        assert_eq!((&said["OpenStdin"], &said["StdinOnce"]), (&json!(true), &json!(true)));
        assert_eq!(said["Labels"][LABEL_SANDBOX], traces.id.as_str());
    }

    #[test]
    fn sandboxes_of_two_state_directories_have_names_and_tags_of_their_own() {
        let here = traces();
        let there = Traces::of(Path::new("/other"), Path::new("/run/live"), &here.id);
        assert_ne!(name(&here), name(&there));
        assert_ne!(state_tag(&here), state_tag(&there));
        assert_eq!(format!("{}{}", state_tag(&here), here.id), name(&here));
    }
}
