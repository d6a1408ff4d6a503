//! The operations of the class `gvisor`.

use std::io::{self, Write};
use std::iter;
use std::path::{Path, PathBuf};

use cofferdam_ambient::env;
use cofferdam_contracts::sandbox::{Limits, SandboxRequest};
use serde_json::Value;
use tokio::process::Command;

use super::{
    MAX_PIDS, MIN_MEM_MB, command, config, connects, host_pids, kernel, memory, restore, unsteady,
    weak,
};
use crate::class::detect::{HostRuntimes, absent};
use crate::class::isolation::{Heard, Isolation};
use crate::class::microvm::Lent;
use crate::host::runtime;
use crate::host::traces::Traces;
use crate::oci::{self, OciInput};
use crate::spec::class::{Class, Offer};
use crate::spec::facts::HostFacts;
use crate::spec::plan::Plan;
use crate::spec::refuse::{Check, within};

/// Has pauses keep memory.
const MEMORY: &str = "COFFERDAM_GVISOR_MEMORY";

pub(crate) static CLASS: GvisorClass = GvisorClass;

pub(crate) struct GvisorClass;

impl Isolation for GvisorClass {
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
        iter::once(weak()).chain(runsc.and_then(|runsc| unsteady(&runsc.version))).collect()
    }

    fn is_killed_with_us(&self) -> bool {
        true
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

    fn config(&self, input: &OciInput<'_>) -> Value {
        config(oci::config(input), input)
    }

    fn hear(&self, traces: &Traces) -> io::Result<Option<Heard>> {
        connects::hear(traces).map(Some)
    }

    fn command(
        &self,
        plan: &Plan,
        groups: &[PathBuf],
        _facts: &HostFacts,
        _lent: Option<&Lent>,
    ) -> Command {
        command(plan, groups)
    }

    /// Its file server opens each file on the host, and what is written to it, mapped pages included, goes there at once.
    fn keeps_files(&self) -> bool {
        true
    }

    /// Where an operator asked for it: not every kernel that was written starts again.
    fn keeps_memory(&self) -> bool {
        env::var(MEMORY).as_deref() == Some("1")
    }

    fn store_memory(
        &self,
        of: (&Traces, &[u32]),
        out: &mut dyn Write,
        most: u64,
    ) -> io::Result<()> {
        memory::store(of, out, most)
    }

    fn restore(&self, plan: &Plan, groups: &[PathBuf], memory: &Path) -> Option<Command> {
        Some(restore(plan, groups, memory))
    }

    fn hides_files(&self) -> bool {
        true
    }

    fn init(&self, members: &[u32]) -> Option<u32> {
        kernel(members)
    }
}
