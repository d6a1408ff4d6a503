//! The operations of the class `docker`.

use std::path::PathBuf;

use cofferdam_contracts::sandbox::{AccessMode, Limits, SandboxRequest, WipeSubject};
use serde_json::Value;

use super::{start, wipe};
use crate::agent::Agent;
use crate::class::detect::{HostRuntimes, absent};
use crate::class::input_mounts::MountRefusal;
use crate::class::isolation::{
    Absence, Attempts, ClassProfile, Custodian, Custody, HostLayout, InputMounts, Launch,
    LaunchInput, LaunchResult, RuntimeFuture, ShowsHost, Snapshots, StartError, Supervision,
};
use crate::class::tail::LOG_BYTES;
use crate::class::weak::NO_USER_NAMESPACE;
use crate::egress::ProxyLocation;
use crate::host::guest::AGENT_PIDS;
use crate::host::hostpath::HostSource;
use crate::host::process::Netns;
use crate::host::runtime::Runtime;
use crate::host::traces::{Traces, cgroup_prefix};
use crate::machine::GuestMount;
use crate::oci::{self, OciInput};
use crate::spec::class::{Class, Offer};
use crate::spec::facts::HostFacts;
use crate::spec::plan::Plan;
use crate::spec::refuse::Check;

pub(crate) static CLASS: DockerClass = DockerClass;

pub(crate) struct DockerClass;

impl ClassProfile for DockerClass {
    fn class(&self) -> Class {
        Class::Docker
    }

    fn detect(&self, found: &HostRuntimes<'_>) -> Offer {
        found.holds(Class::Docker).unwrap_or_else(|| {
            absent(
                "no engine was asked for",
                "--runtime docker; `container` is as strong and needs no engine",
            )
        })
    }

    fn weak(&self, _facts: &HostFacts) -> Vec<String> {
        vec![format!("no user namespace: {NO_USER_NAMESPACE}")]
    }

    /// Nothing more than every class does.
    fn refuse(&self, _request: &SandboxRequest, _asked: Limits, _facts: &HostFacts) -> Check {
        Ok(())
    }

    fn host_limits(&self, limits: Limits) -> Limits {
        let pids = limits.pids.map(|pids| pids + AGENT_PIDS);
        Limits { pids, ..limits }
    }

    /// An engine is asked by its socket.
    fn program(&self, _runtime: &Runtime) -> Option<PathBuf> {
        None
    }
}

impl InputMounts for DockerClass {
    fn shows_host(&self) -> ShowsHost {
        ShowsHost::Overlays
    }

    fn gives(&self, _access: AccessMode) -> Result<(), MountRefusal> {
        Ok(())
    }
}

impl Launch for DockerClass {
    fn config(&self, input: &OciInput<'_>) -> Value {
        oci::config(input)
    }

    fn host_layout(
        &self,
        plan: &Plan,
        _base: &HostSource,
        _given: &[GuestMount],
        facts: &HostFacts,
    ) -> HostLayout {
        HostLayout::of(plan, self.host_limits(plan.effective.limits), facts)
    }

    /// An engine is asked; no program of it is started here.
    fn start<'a>(
        &'a self,
        on: LaunchInput<'a>,
    ) -> RuntimeFuture<'a, Result<LaunchResult, StartError>> {
        Box::pin(async move {
            let started = start::start(on.plan, on.mounts, on.groups, LOG_BYTES).await;
            started.map_err(|error| StartError::Holder(Box::new(error)))
        })
    }
}

impl Custody for DockerClass {
    fn custodian(&self) -> Option<&dyn Custodian> {
        Some(self)
    }
}

impl Custodian for DockerClass {
    fn take_away(&self, traces: &Traces, facts: &HostFacts) -> Absence {
        Absence { checks: wipe::take_away(traces, facts), elsewhere: None }
    }

    fn known(&self, facts: &HostFacts) -> Vec<String> {
        wipe::known(facts, &cgroup_prefix(&facts.state_dir))
    }

    fn again(&self, looked: &WipeSubject) -> Option<Option<String>> {
        match looked {
            WipeSubject::Container { name, engine } => Some(wipe::again(name, engine)),
            _ => None,
        }
    }
}

impl Supervision for DockerClass {
    fn way(&self, netns: Option<Netns>, _agent: &Agent) -> Option<ProxyLocation> {
        netns.map(ProxyLocation::Netns)
    }

    fn attempts(&self) -> Attempts {
        Attempts::Namespace
    }

    fn hides_files(&self) -> bool {
        false
    }
}

impl Snapshots for DockerClass {
    /// Its root is ours: all that a task writes lies in the worker's layer, and nothing in the engine's.
    fn keeps_files(&self) -> bool {
        true
    }
}
