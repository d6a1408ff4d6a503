//! A class that only tests have: it shows what a class more takes, which is this folder, its line in the registry
//! and its `mod`. Everything outside compiles without its name.

mod tests;

use std::path::PathBuf;

use cofferdam_contracts::sandbox::{AccessMode, Limits, SandboxRequest, WipeCheck, WipeSubject};

use super::detect::{HostRuntimes, absent};
use super::input_mounts::MountRefusal;
use super::isolation::{
    Absence, Attempts, ClassProfile, Custodian, Custody, HostLayout, InputMounts, Launch,
    LaunchInput, LaunchResult, RuntimeFuture, Snapshots, StartError, Supervision,
};
use super::program;
use crate::host::hostpath::HostSource;
use crate::host::traces::Traces;
use crate::machine::GuestMount;
use crate::spec::class::{Class, Offer};
use crate::spec::facts::HostFacts;
use crate::spec::plan::Plan;
use crate::spec::refuse::{Check, within};

/// Processes of one of its sandboxes.
const MAX_PIDS: u64 = 6;

pub(crate) static CLASS: SixthClass = SixthClass;

pub(crate) struct SixthClass;

/// What stands for whatever else holds its sandboxes: a file beside them.
fn held(facts: &HostFacts) -> PathBuf {
    facts.state_dir.join("sixth")
}

impl ClassProfile for SixthClass {
    fn class(&self) -> Class {
        Class::Sixth
    }

    fn detect(&self, _found: &HostRuntimes<'_>) -> Offer {
        absent("nothing holds it", "with_facts")
    }

    fn weak(&self, _facts: &HostFacts) -> Vec<String> {
        vec!["sixth: everything".to_owned()]
    }

    fn refuse(&self, _request: &SandboxRequest, asked: Limits, _facts: &HostFacts) -> Check {
        within("limits.pids", asked.pids, 1, MAX_PIDS, "processes of the sixth class")
    }

    fn host_limits(&self, limits: Limits) -> Limits {
        Limits { mem_mb: limits.mem_mb.map(|mb| mb + 1), ..limits }
    }

    fn kernel(&self, _facts: &HostFacts) -> String {
        "a sixth kernel".to_owned()
    }
}

impl InputMounts for SixthClass {
    fn gives(&self, _access: AccessMode) -> Result<(), MountRefusal> {
        Ok(())
    }
}

impl Launch for SixthClass {
    fn host_layout(
        &self,
        plan: &Plan,
        _base: &HostSource,
        _given: &[GuestMount],
        facts: &HostFacts,
    ) -> HostLayout {
        HostLayout::of(plan, self.host_limits(plan.effective.limits), facts)
    }

    fn start<'a>(
        &'a self,
        on: LaunchInput<'a>,
    ) -> RuntimeFuture<'a, Result<LaunchResult, StartError>> {
        Box::pin(async move { program::start(self, on) })
    }
}

impl Custody for SixthClass {
    fn custodian(&self) -> Option<&dyn Custodian> {
        Some(self)
    }
}

impl Custodian for SixthClass {
    fn take_away(&self, traces: &Traces, facts: &HostFacts) -> Absence {
        let (name, engine) = (traces.id.to_string(), held(facts).display().to_string());
        let left = held(facts).exists().then(|| "still there".to_owned());
        let check = WipeCheck::new(WipeSubject::Container { name, engine }, left);
        Absence { checks: vec![check], elsewhere: None }
    }

    fn known(&self, facts: &HostFacts) -> Vec<String> {
        std::fs::read_to_string(held(facts)).into_iter().collect()
    }

    fn again(&self, _looked: &WipeSubject) -> Option<Option<String>> {
        None
    }
}

impl Supervision for SixthClass {
    fn attempts(&self) -> Attempts {
        Attempts::Each
    }

    fn hides_files(&self) -> bool {
        false
    }
}

impl Snapshots for SixthClass {}
