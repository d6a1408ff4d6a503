//! The operations of the class `remote`.

use std::path::PathBuf;

use cofferdam_contracts::sandbox::{
    AccessMode, Limits, MAX_STREAM_BYTES, SandboxRequest, WipeMethod, WipeSubject,
};
use cofferdam_contracts::session::HardwareIsolation;

use super::{ELSEWHERE, refuse, start, weak, wipe};
use crate::class::detect::{HostRuntimes, absent};
use crate::class::input_mounts::{Medium, MountRefusal};
use crate::class::isolation::{
    Absence, Attempts, ClassProfile, Custodian, Custody, HostLayout, InputMounts, Launch,
    LaunchInput, LaunchResult, RemoteRemoval, RuntimeFuture, Snapshots, StartError, Supervision,
};
use crate::class::tail::LOG_BYTES;
use crate::host::base::Base;
use crate::host::cgroup::CgroupMode;
use crate::host::hostpath::HostSource;
use crate::host::runtime::Runtime;
use crate::host::traces::Traces;
use crate::machine::GuestMount;
use crate::spec::class::{Class, Offer};
use crate::spec::facts::HostFacts;
use crate::spec::plan::Plan;
use crate::spec::refuse::Check;

pub(crate) static CLASS: RemoteClass = RemoteClass;

pub(crate) struct RemoteClass;

impl ClassProfile for RemoteClass {
    fn class(&self) -> Class {
        Class::Remote
    }

    fn detect(&self, found: &HostRuntimes<'_>) -> Offer {
        found.holds(Class::Remote).unwrap_or_else(|| {
            absent(
                "no provider was asked for",
                "--runtime remote --remote-url URL --remote-template NAME",
            )
        })
    }

    fn weak(&self, _facts: &HostFacts) -> Vec<String> {
        weak()
    }

    fn hardware(&self, _facts: &HostFacts) -> HardwareIsolation {
        HardwareIsolation::Stated
    }

    /// What is weak here is no matter of what is elsewhere.
    fn shares_weaknesses(&self) -> bool {
        false
    }

    fn refuse(&self, request: &SandboxRequest, asked: Limits, _facts: &HostFacts) -> Check {
        refuse(request, asked)
    }

    /// The template's are the provider's to say.
    fn limits(&self, asked: Limits, _facts: &HostFacts) -> Limits {
        Limits { output_bytes: Some(asked.output_bytes.unwrap_or(MAX_STREAM_BYTES)), ..asked }
    }

    fn host_mem_mb(&self, _limits: Limits) -> u64 {
        0
    }

    fn root(&self, facts: &HostFacts) -> Option<Base> {
        Some(Base::Ours(facts.base.clone()))
    }

    /// It is the template's, which the provider has.
    fn reads_root(&self) -> bool {
        false
    }

    fn kernel(&self, _facts: &HostFacts) -> String {
        ELSEWHERE.to_owned()
    }

    /// A provider is asked by its URL.
    fn program(&self, _runtime: &Runtime) -> Option<PathBuf> {
        None
    }

    fn cgroups(&self, _mode: CgroupMode) -> &'static str {
        ELSEWHERE
    }
}

impl InputMounts for RemoteClass {
    /// It is given bytes alone.
    fn gives(&self, _access: AccessMode) -> Result<(), MountRefusal> {
        Err(MountRefusal::Elsewhere)
    }

    fn medium(&self) -> Medium {
        Medium::Bytes
    }
}

impl Launch for RemoteClass {
    fn host_layout(
        &self,
        _plan: &Plan,
        _base: &HostSource,
        _given: &[GuestMount],
        _facts: &HostFacts,
    ) -> HostLayout {
        HostLayout::default()
    }

    /// A provider is asked; no program of it is started here.
    fn start<'a>(
        &'a self,
        on: LaunchInput<'a>,
    ) -> RuntimeFuture<'a, Result<LaunchResult, StartError>> {
        Box::pin(async move {
            let started = start(on.plan, on.facts.provider.as_ref(), LOG_BYTES).await;
            started.map_err(|error| StartError::Holder(Box::new(error)))
        })
    }
}

impl Custody for RemoteClass {
    fn custodian(&self) -> Option<&dyn Custodian> {
        Some(self)
    }
}

impl Custodian for RemoteClass {
    fn take_away(&self, traces: &Traces, facts: &HostFacts) -> Absence {
        let checks = wipe::take_away(traces, facts);
        let elsewhere = (!checks.is_empty()).then(|| RemoteRemoval {
            method: WipeMethod::RemoteAbsence,
            not_recheckable: wipe::not_recheckable(),
        });
        Absence { checks, elsewhere }
    }

    fn known(&self, facts: &HostFacts) -> Vec<String> {
        wipe::known(facts)
    }

    fn again(&self, _looked: &WipeSubject) -> Option<Option<String>> {
        None
    }
}

impl Supervision for RemoteClass {
    fn attempts(&self) -> Attempts {
        Attempts::Each
    }

    fn hides_files(&self) -> bool {
        false
    }
}

impl Snapshots for RemoteClass {}
