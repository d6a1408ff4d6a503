//! What only its provider could enforce is refused by the field's name. Pure.

use cofferdam_contracts::sandbox::{InputFile, Limits, SandboxRequest};

use crate::spec::refuse::PlanError;

/// The one root that there is: that of the operator's template.
const TEMPLATE: &str = "host";

/// Refuses what a sandbox elsewhere is not given, and limits that are its template's.
pub(crate) fn refuse(request: &SandboxRequest, asked: Limits) -> Result<(), PlanError> {
    let spec = request.spec.as_ref();
    let is_host = |file: &InputFile| file.host_source().is_some();
    let of_host = request.files_in.iter().position(is_host);
    let of_host = of_host.map(|index| format!("filesIn[{index}].uri"));
    let mounts = spec.and_then(|spec| spec.mounts.as_ref()).is_some_and(|all| !all.is_empty());
    let its = "is its template's in the class `remote`: leave it out";
    let refused = [
        (
            request.env_ref != TEMPLATE,
            "envRef",
            "must be `host` in the class `remote`: the operator's template",
        ),
        (
            !request.toolchains.is_empty(),
            "toolchains",
            "lie on this host, and the class `remote` is given bytes alone",
        ),
        (
            mounts,
            "spec.mounts",
            "shows paths of this host, and the class `remote` is given bytes alone",
        ),
        (
            spec.is_some_and(|spec| spec.cache.is_some()),
            "spec.cache",
            "lies on this host, not with a provider",
        ),
        (
            request.input.is_some(),
            "input",
            "is not given to a command of the class `remote`, which outlives its worker: pass a file as `stdin`",
        ),
        (asked.cpu.is_some(), "limits.cpu", its),
        (asked.mem_mb.is_some(), "limits.memMB", its),
        (asked.pids.is_some(), "limits.pids", its),
        (asked.disk_mb.is_some(), "limits.diskMB", its),
        (asked.nofile.is_some(), "limits.nofile", its),
    ];
    if let Some(field) = of_host {
        return Err(PlanError::new(
            field,
            "is on this host, and the class `remote` is given bytes alone",
        ));
    }
    match refused.into_iter().find(|(is_refused, ..)| *is_refused) {
        Some((_, field, why)) => Err(PlanError::new(field, why)),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn field(changes: Value) -> Option<String> {
        let mut request = json!({"envRef": "host", "cmd": ["true"], "timeoutMs": 1_000});
        for (name, value) in changes.as_object().unwrap() {
            request[name] = value.clone();
        }
        let request: SandboxRequest = serde_json::from_value(request).unwrap();
        refuse(&request, request.limits).err().map(|error| error.field)
    }

    #[test]
    fn what_only_the_provider_could_enforce_is_refused_by_name() {
        for (changes, name) in [
            (json!({"envRef": "image:base"}), "envRef"),
            (json!({"envRef": "dir:/srv"}), "envRef"),
            (json!({"input": "stream"}), "input"),
            (json!({"limits": {"cpu": 1.0}}), "limits.cpu"),
            (json!({"limits": {"memMB": 64}}), "limits.memMB"),
            (json!({"limits": {"pids": 64}}), "limits.pids"),
            (json!({"limits": {"diskMB": 64}}), "limits.diskMB"),
            (json!({"limits": {"nofile": 64}}), "limits.nofile"),
            (
                json!({"filesIn": [{"path": "/a", "inline": ""}, {"path": "/b", "uri": "host:///etc"}]}),
                "filesIn[1].uri",
            ),
            (
                json!({"spec": {"mounts": [{"source": "/a", "target": "/b", "access": "read-only"}]}}),
                "spec.mounts",
            ),
            (json!({"spec": {"cache": {"repo": "r", "paths": ["a"]}}}), "spec.cache"),
        ] {
            assert_eq!(field(changes.clone()).as_deref(), Some(name), "{changes}");
        }
        assert_eq!(field(json!({"limits": {"outputBytes": 1}})), None, "the agent holds that one");
        assert_eq!(field(json!({"net": ["a.example"]})), None, "and that");
    }
}
