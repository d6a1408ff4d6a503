//! The operations of the class `gvisor`.

use std::io::{self, Write};
use std::iter;
use std::path::PathBuf;

use cofferdam_ambient::env;
use cofferdam_contracts::sandbox::{AccessMode, Limits, SandboxRequest};
use serde_json::Value;
use tokio::process::Command;

use super::{
    MAX_PIDS, MIN_MEM_MB, command, config, connects, host_pids, kept_memory, kernel, memory,
    restore, unsteady, weak,
};
use crate::class::detect::{HostRuntimes, absent};
use crate::class::input_mounts::MountRefusal;
use crate::class::isolation::{
    AttemptWatch, Attempts, ClassProfile, Custodian, Custody, HostLayout, InputMounts, Launch,
    LaunchInput, LaunchResult, RuntimeFuture, ShowsHost, Snapshots, StartError, Supervision,
};
use crate::class::memory_support::MemorySupport;
use crate::class::program;
use crate::host::hostpath::HostSource;
use crate::host::runtime;
use crate::host::traces::Traces;
use crate::machine::GuestMount;
use crate::oci::{self, OciInput};
use crate::spec::class::{Class, Offer};
use crate::spec::facts::HostFacts;
use crate::spec::plan::Plan;
use crate::spec::refuse::{Check, within};

/// Decides it in place of the version of runsc: 1 or 0.
pub(super) const MEMORY: &str = "COFFERDAM_GVISOR_MEMORY";

pub(crate) static CLASS: GvisorClass = GvisorClass;

pub(crate) struct GvisorClass;

impl ClassProfile for GvisorClass {
    fn class(&self) -> Class {
        Class::Gvisor
    }

    fn detect(&self, found: &HostRuntimes<'_>) -> Offer {
        found.elsewhere().unwrap_or_else(|| match runtime::gvisor() {
            Ok(runsc) => Offer::Present(runsc),
            Err((why, remedy)) => absent(&why, remedy),
        })
    }

    fn weak(&self, facts: &HostFacts) -> Vec<String> {
        let runsc = facts.runtime_of(Class::Gvisor);
        let unsteady = runsc.and_then(|runsc| unsteady(&runsc.version));
        // What could be reached through its file server would be reached as the host's root.
        let ids = facts.ids.as_ref().err();
        let ids =
            ids.map(|why| format!("its file server has no user namespace of its own ({why})"));
        iter::once(weak()).chain(unsteady).chain(ids).collect()
    }

    fn refuse(&self, _request: &SandboxRequest, asked: Limits, _facts: &HostFacts) -> Check {
        within("limits.pids", asked.pids, 1, MAX_PIDS, "processes of a gVisor sandbox")
    }

    fn least_mem_mb(&self) -> u64 {
        MIN_MEM_MB
    }

    fn host_limits(&self, limits: Limits) -> Limits {
        Limits { pids: Some(host_pids(limits.pids.unwrap_or(0))), ..limits }
    }
}

impl InputMounts for GvisorClass {
    fn shows_host(&self) -> ShowsHost {
        ShowsHost::InRoot
    }

    fn gives(&self, _access: AccessMode) -> Result<(), MountRefusal> {
        Ok(())
    }
}

impl Launch for GvisorClass {
    fn config(&self, input: &OciInput<'_>) -> Value {
        config(oci::config(input), input)
    }

    fn host_layout(
        &self,
        plan: &Plan,
        _base: &HostSource,
        _given: &[GuestMount],
        facts: &HostFacts,
    ) -> HostLayout {
        // Shown by its own ids, as all else in its root.
        let apart = if plan.host_usr { facts.binds.clone() } else { Vec::new() };
        let layout = HostLayout::of(plan, self.host_limits(plan.effective.limits), facts);
        HostLayout { has_users: true, apart, binds_tmp: true, ..layout }
    }

    fn guest<'a>(&self, facts: &'a HostFacts) -> &'a PathBuf {
        &facts.polling_guest
    }

    fn hear(&self, traces: &Traces) -> io::Result<Option<AttemptWatch>> {
        connects::hear(traces).map(Some)
    }

    fn start<'a>(
        &'a self,
        on: LaunchInput<'a>,
    ) -> RuntimeFuture<'a, Result<LaunchResult, StartError>> {
        Box::pin(async move { program::start(self, on) })
    }

    fn command(&self, on: &LaunchInput<'_>) -> Option<Command> {
        Some(match on.memory {
            Some(memory) => restore(on.plan, on.groups, memory),
            None => command(on.plan, on.groups),
        })
    }

    fn is_killed_with_us(&self) -> bool {
        true
    }
}

impl Custody for GvisorClass {
    fn custodian(&self) -> Option<&dyn Custodian> {
        None
    }
}

impl Supervision for GvisorClass {
    fn init(&self, members: &[u32]) -> Option<u32> {
        kernel(members)
    }

    /// Its file server has its own, too.
    fn has_own_mounts(&self) -> bool {
        true
    }

    fn attempts(&self) -> Attempts {
        Attempts::Each
    }

    fn hides_files(&self) -> bool {
        true
    }
}

impl Snapshots for GvisorClass {
    /// Its file server opens each file on the host, and what is written to it, mapped pages included, goes there at once.
    fn keeps_files(&self) -> bool {
        true
    }

    fn kept_memory(&self, facts: &HostFacts) -> Option<MemorySupport> {
        let version = facts.runtime_of(Class::Gvisor)?.version.as_str();
        Some(kept_memory(version, env::var(MEMORY).as_deref()))
    }

    fn store_memory(
        &self,
        traces: &Traces,
        members: &[u32],
        out: &mut dyn Write,
        most: u64,
    ) -> io::Result<()> {
        memory::store(traces, members, out, most)
    }
}
