//! The class `container`: namespaces, cgroups and a system call filter on the host's kernel, by crun or runc.

use std::io;
use std::path::PathBuf;

use cofferdam_contracts::sandbox::{AccessMode, Limits, SandboxRequest};
use serde_json::Value;
use tokio::process::Command;

use super::detect::{HostRuntimes, absent};
use super::input_mounts::MountRefusal;
use super::isolation::{
    Attempts, ClassProfile, Custodian, Custody, HostLayout, InputMounts, Launch, LaunchInput,
    LaunchResult, ReadyStart, RuntimeFuture, ShowsHost, Snapshots, StartError, Supervision,
};
use super::program;
use super::weak::{NO_USER_NAMESPACE, NOT_OWNED};
use crate::agent::Agent;
use crate::egress::ProxyLocation;
use crate::host::ceiling::Tcp;
use crate::host::hostpath::HostSource;
use crate::host::process::Netns;
use crate::host::processors;
use crate::host::runtime::Runtime;
use crate::machine::GuestMount;
use crate::oci::{self, OciInput};
use crate::spec::class::{Class, Offer};
use crate::spec::facts::HostFacts;
use crate::spec::plan::Plan;
use crate::spec::refuse::{Check, full_access, is_host};

pub(crate) static CLASS: ContainerClass = ContainerClass;

pub(crate) struct ContainerClass;

impl ClassProfile for ContainerClass {
    fn class(&self) -> Class {
        Class::Container
    }

    fn detect(&self, found: &HostRuntimes<'_>) -> Offer {
        found.holds(Class::Container).unwrap_or_else(|| {
            absent(
                "a Docker engine holds this worker's sandboxes",
                "start without --runtime docker",
            )
        })
    }

    fn weak(&self, facts: &HostFacts) -> Vec<String> {
        match &facts.ids {
            Ok(ids) if ids.is_owned() => Vec::new(),
            Ok(_) => vec![NOT_OWNED.to_owned()],
            Err(why) => vec![format!("no user namespace ({why}): {NO_USER_NAMESPACE}")],
        }
    }

    /// Without ids of its own a sandbox's root is the host's, and what it leaves there is root's.
    fn refuse(&self, request: &SandboxRequest, _asked: Limits, facts: &HostFacts) -> Check {
        full_access(
            request,
            |file| facts.ids.is_ok() || !is_host(file),
            "this host has no user namespaces for sandboxes, so what the task writes would be root's; ask for \
             `workspace-write`, or see `cofferdam doctor`",
        )
    }

    fn has_large_layers(&self) -> bool {
        true
    }

    fn has_own_ids(&self, facts: &HostFacts) -> bool {
        facts.ids.is_ok()
    }

    fn rootless(&self, facts: &HostFacts) -> Option<String> {
        let why = match &facts.ids {
            Ok(ids) => ids.foreign_nodes()?,
            Err(why) => why.as_str(),
        };
        Some(format!(
            "this host gives sandboxes no users or devices of their own ({why}); see `cofferdam doctor`"
        ))
    }
}

impl InputMounts for ContainerClass {
    fn shows_host(&self) -> ShowsHost {
        ShowsHost::InRoot
    }

    fn gives(&self, _access: AccessMode) -> Result<(), MountRefusal> {
        Ok(())
    }
}

impl Launch for ContainerClass {
    fn config(&self, input: &OciInput<'_>) -> Value {
        oci::config(input)
    }

    /// Its cgroups are the runtime's to make.
    fn host_layout(
        &self,
        plan: &Plan,
        _base: &HostSource,
        _given: &[GuestMount],
        facts: &HostFacts,
    ) -> HostLayout {
        let apart = if plan.host_usr { facts.binds.clone() } else { Vec::new() };
        let shown_groups = facts.cgroups.shown(&plan.traces);
        let layer_mb = Some(plan.disk_mb);
        HostLayout { layer_mb, has_users: true, apart, shown_groups, ..HostLayout::default() }
    }

    fn start<'a>(
        &'a self,
        on: LaunchInput<'a>,
    ) -> RuntimeFuture<'a, Result<LaunchResult, StartError>> {
        Box::pin(async move { program::start(self, on) })
    }

    fn start_ahead(&self, on: LaunchInput<'_>) -> Option<Result<ReadyStart, StartError>> {
        Some(program::later(self, on))
    }

    fn command(&self, on: &LaunchInput<'_>) -> Option<Command> {
        if on.memory.is_some() {
            return None;
        }
        let (runtime, traces) = (&on.plan.runtime, &on.plan.traces);
        let mut command = Command::new(runtime.program());
        command
            .arg0(&runtime.path)
            .args(runtime.globals())
            .arg("--root")
            .arg(&traces.runtime_root)
            .args(["run", "--bundle"])
            .arg(&traces.dir)
            .arg(traces.id.as_str());
        Some(command)
    }

    fn may_wait(&self) -> bool {
        true
    }
}

impl Custody for ContainerClass {
    fn custodian(&self) -> Option<&dyn Custodian> {
        None
    }
}

impl Supervision for ContainerClass {
    fn awaits_runtime(&self) -> bool {
        true
    }

    /// runc passes on what its container says.
    fn outlives(&self, runtime: &Runtime) -> bool {
        runtime.is_crun()
    }

    fn has_own_mounts(&self) -> bool {
        true
    }

    /// A runtime knows no limit of TCP's buffers, and a quota of time is no number of processors.
    fn settle(&self, plan: &Plan, facts: &HostFacts) -> Result<(), (PathBuf, io::Error)> {
        let cpu = plan.effective.limits.cpu.unwrap_or(f64::from(facts.cpus));
        processors::pin(cpu, || facts.cgroups.members(&plan.traces));
        match facts.ceilings.tcp {
            Tcp::Limited => {
                let mem_mb = plan.effective.limits.mem_mb.unwrap_or(0);
                facts.cgroups.limit_tcp(&plan.traces, mem_mb)
            }
            Tcp::Counted | Tcp::Uncounted => Ok(()),
        }
    }

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

impl Snapshots for ContainerClass {
    fn keeps_files(&self) -> bool {
        true
    }
}
