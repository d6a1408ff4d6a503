//! The throw-away class is planned, refused, wiped and looked for like any other.

use cofferdam_contracts::id::SandboxId;
use cofferdam_contracts::sandbox::{IsolationClass, SandboxRequest, WipeStatus};
use serde_json::json;

use super::held;
use crate::class::detect::absent;
use crate::host::runtime::Runtime;
use crate::spec::class::{Class, Offer};
use crate::{Host, HostConfig, enter_private_mounts, plan, reconcile, verify_absent, verify_again};

fn request(changes: serde_json::Value) -> SandboxRequest {
    let mut request = json!({"envRef": "host", "cmd": ["true"], "timeoutMs": 1_000,
                             "spec": {"isolation": {"class_min": "microvm"}}});
    for (name, value) in changes.as_object().unwrap() {
        request[name] = value.clone();
    }
    serde_json::from_value(request).unwrap()
}

/// A host that has the sixth class and none that is as strong.
fn host(state: &std::path::Path) -> Host {
    enter_private_mounts().unwrap();
    let config = HostConfig { state_dir: state.to_owned(), ..HostConfig::default() };
    Host::detect(config).unwrap().with_facts(|facts| {
        let runtime = Runtime {
            name: "sixth".to_owned(),
            path: "/nonexistent/sixth".into(),
            version: "sixth 6".to_owned(),
            sealed: None,
        };
        for fact in &mut facts.classes {
            fact.offer = match fact.class {
                Class::Sixth => Offer::Present(runtime.clone()),
                _ => absent("not here", "nothing"),
            };
        }
    })
}

#[test]
fn a_class_more_is_planned_and_refused_by_its_own_folder() {
    let state = tempfile::tempdir().unwrap();
    let host = host(state.path());
    let id = SandboxId::parse("sb00000000000000000006").unwrap();
    let planned = plan(&request(json!({})), &id, host.facts()).unwrap();
    assert_eq!(planned.class, Class::Sixth);
    assert_eq!(planned.effective.isolation_class, IsolationClass::Microvm);
    assert_eq!(planned.effective.kernel, "a sixth kernel");
    assert_eq!(planned.effective.weak[0], "sixth: everything");
    assert_eq!(planned.host_mem_mb(), planned.effective.limits.mem_mb.unwrap() + 1);
    let asked = request(json!({"limits": {"pids": 7}}));
    let refused = plan(&asked, &id, host.facts()).unwrap_err();
    assert_eq!(refused.field, "limits.pids");
    assert!(refused.message.contains("the sixth class"), "{refused}");
    assert_eq!(Class::ALL.len(), Class::LOCAL.len() + 2, "it is in the registry");
    host.leave();
}

#[tokio::test]
async fn a_class_more_is_asked_at_every_wipe_and_every_look_behind_it() {
    let state = tempfile::tempdir().unwrap();
    let host = host(state.path());
    let id = SandboxId::parse("sb00000000000000000066").unwrap();
    std::fs::write(held(host.facts()), id.as_str()).unwrap();
    let evidence = reconcile(&host, |_| false).await;
    assert_eq!(evidence.len(), 1, "an orphan that this class alone knows");
    let failed: Vec<_> = evidence[0].checks.iter().filter(|check| !check.ok).collect();
    assert_eq!(failed.len(), 1, "{failed:?}");
    assert_eq!(
        (failed[0].kind().as_str(), failed[0].subject().contains("/sixth")),
        ("container", true)
    );
    let again = verify_again(&host, &evidence[0], state.path()).await;
    assert_eq!(again.status, WipeStatus::Failed);
    std::fs::remove_file(held(host.facts())).unwrap();
    assert_eq!(verify_again(&host, &again, state.path()).await.status, WipeStatus::Verified);
    let gone = verify_absent(&host, &id, state.path(), "orphan").await;
    assert_eq!(gone.status, WipeStatus::Verified, "{gone:?}");
    host.leave();
}
