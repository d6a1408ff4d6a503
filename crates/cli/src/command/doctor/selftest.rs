//! The escape self-test in each runtime that is installed, and in every class beside `container`.

use std::path::Path;

use cofferdam_ambient::random;
use cofferdam_sandbox::{
    Class, ClassFact, Host, HostConfig, Offer, Runtime, SelfTest, self_test_in,
};

use crate::command::output;

/// What one runtime's sandboxes showed; an error is as bad as a surprise, since nothing was shown.
#[derive(Debug)]
pub(super) struct ProbeReport {
    pub class: Class,
    pub runtime: Runtime,
    pub outcome: Result<SelfTest, String>,
}

impl ProbeReport {
    pub(super) fn holds(&self) -> bool {
        self.outcome.as_ref().is_ok_and(|test| test.surprises().next().is_none() && test.is_wiped())
    }
}

/// One runtime after the other, so that only the two sandboxes of one test run at a time. In a state
/// directory of its own: a worker that starts meanwhile takes sandboxes that its ledger does not
/// know for orphans.
pub(super) async fn every_runtime(dir: &Path, classes: &[ClassFact]) -> Vec<ProbeReport> {
    let present = |class: Class| {
        classes.iter().find_map(|fact| match &fact.offer {
            Offer::Present(runtime) if fact.class == class => Some(runtime.clone()),
            _ => None,
        })
    };
    let own = dir.join(format!("doctor.{}", random::secret_hex(8)));
    let mut probed = Vec::new();
    for runtime in Runtime::all() {
        let path = runtime.path.to_string_lossy().into_owned();
        let test = self_test_on(&own, Some(path), Class::Container);
        let outcome = test.await.map_err(|error| format!("{error:#}"));
        probed.push(ProbeReport { class: Class::Container, runtime, outcome });
    }
    for class in [Class::Gvisor, Class::Microvm, Class::Docker] {
        let Some(runtime) = present(class) else { continue };
        let wanted = (class == Class::Docker).then(|| runtime.name.clone());
        let outcome = self_test_on(&own, wanted, class).await;
        let outcome = outcome.map_err(|error| format!("{error:#}"));
        probed.push(ProbeReport { class, runtime, outcome });
    }
    if let Err(error) = std::fs::remove_dir_all(&own) {
        output::note(&format!("{} is left: {error}", own.display()));
    }
    probed
}

async fn self_test_on(
    state_dir: &Path,
    runtime: Option<String>,
    class: Class,
) -> anyhow::Result<SelfTest> {
    let host = Host::detect(HostConfig {
        state_dir: state_dir.to_owned(),
        runtime,
        ..HostConfig::default()
    })?;
    let test = self_test_in(&host, class).await;
    host.leave();
    Ok(test?)
}
