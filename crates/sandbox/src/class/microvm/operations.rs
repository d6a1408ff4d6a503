//! The operations of the class `microvm`.

use std::io;
use std::path::{Path, PathBuf};

use cofferdam_contracts::sandbox::{AccessMode, Limits, SandboxRequest};
use cofferdam_contracts::session::HardwareIsolation;
use tokio::process::Command;

use super::monitor::Kind;
use super::{
    EmulatorOrders, Given, HOST_LAYER_MB, Lent, MAX_PIDS, Parts, changes_at, command, given,
    host_limits, own, weak,
};
use crate::agent::changes::Changed;
use crate::class::detect::{HostRuntimes, absent};
use crate::class::isolation::{
    Attempts, ClassProfile, Custodian, Custody, Footing, Holder, InputMounts, Launch, Snapshots,
    Supervision,
};
use crate::class::kept_memory::KeptMemory;
use crate::class::shown::{NotGiven, Resolved};
use crate::host::hostpath::Place;
use crate::spec::class::{Class, Offer};
use crate::spec::facts::HostFacts;
use crate::spec::machine::Accel;
use crate::spec::plan::Plan;
use crate::spec::refuse::{Check, full_access, is_host, within};

pub(crate) static CLASS: MicrovmClass = MicrovmClass;

pub(crate) struct MicrovmClass;

impl ClassProfile for MicrovmClass {
    fn class(&self) -> Class {
        Class::Microvm
    }

    fn detect(&self, found: &HostRuntimes<'_>) -> Offer {
        found.elsewhere().unwrap_or_else(|| match found.machine {
            Ok(qemu) => Offer::Present(qemu.clone()),
            Err((why, remedy)) => absent(why, remedy),
        })
    }

    fn weak(&self, facts: &HostFacts) -> Vec<String> {
        weak(facts.machine.as_ref().map(|machine| &machine.accel))
    }

    fn hardware(&self, facts: &HostFacts) -> HardwareIsolation {
        match facts.machine.as_ref().map(|machine| &machine.accel) {
            Some(Accel::Kvm) => HardwareIsolation::Yes,
            Some(Accel::Software { .. }) | None => HardwareIsolation::Emulated,
        }
    }

    /// A machine sees the host's trees as a disk that it only reads.
    fn refuse(&self, request: &SandboxRequest, asked: Limits, _facts: &HostFacts) -> Check {
        full_access(
            request,
            |file| !is_host(file),
            "the class `microvm` gives no source to write through; ask for `workspace-write`, or for the \
             class `container`",
        )?;
        within("limits.pids", asked.pids, 1, MAX_PIDS, "processes of a machine")
    }

    fn host_limits(&self, limits: Limits) -> Limits {
        host_limits(limits)
    }

    fn kernel(&self, facts: &HostFacts) -> String {
        facts
            .machine
            .as_ref()
            .map_or_else(|| facts.kernel.clone(), |machine| machine.release.clone())
    }
}

impl InputMounts for MicrovmClass {
    /// A machine sees the host's trees as a disk that it only reads.
    fn gives(&self, access: AccessMode) -> Result<(), NotGiven> {
        if access == AccessMode::Full { Err(NotGiven::Full) } else { Ok(()) }
    }

    fn show(&self, resolved: &mut Resolved<'_>, plan: &Plan, source: Place, target: &str) {
        resolved.given.push(given(plan, source, target, None));
    }

    fn show_on_write(
        &self,
        resolved: &mut Resolved<'_>,
        plan: &Plan,
        lower: Place,
        target: &str,
        _place: &Path,
    ) {
        let shown = changes_at(resolved.given.len());
        resolved.given.push(given(plan, lower, target, Some(shown)));
    }

    fn show_tree(&self, resolved: &mut Resolved<'_>, plan: &Plan, lower: Place, target: &str) {
        let shown = changes_at(resolved.given.len());
        resolved.given.push(given(plan, lower, target, Some(shown.clone())));
        resolved.trees.push((target.to_owned(), Changed::Inside(shown)));
    }

    fn show_own(&self, resolved: &mut Resolved<'_>, target: &str, _place: &Path) {
        let shown = changes_at(resolved.given.len());
        resolved.given.push(own(target, shown.clone()));
        resolved.fresh.push(shown);
    }
}

impl Launch for MicrovmClass {
    /// Its layer on the host holds a sentinel and nothing of the task's.
    fn footing(&self, plan: &Plan, base: &Place, asked: &[Given], facts: &HostFacts) -> Footing {
        let footing = Footing::of(plan, self.host_limits(plan.effective.limits), facts);
        let parts = Some(Parts::of(plan, base, asked, facts));
        Footing { layer_mb: Some(HOST_LAYER_MB), parts, ..footing }
    }

    fn command(
        &self,
        plan: &Plan,
        groups: &[PathBuf],
        facts: &HostFacts,
        lent: Option<&Lent>,
    ) -> Command {
        match &facts.machine {
            Some(machine) => command(plan, groups, machine, lent),
            // Without a machine the class is absent, and no plan names it.
            None => Command::new(plan.runtime.program()),
        }
    }

    fn orders(&self, plan: &Plan, command: &mut Command) -> io::Result<Option<EmulatorOrders>> {
        match self.holder(plan) {
            Holder::Program => EmulatorOrders::to(command).map(Some),
            _ => Ok(None),
        }
    }

    fn is_killed_with_us(&self) -> bool {
        true
    }
}

impl Custody for MicrovmClass {
    fn holder(&self, plan: &Plan) -> Holder {
        Kind::named(&plan.runtime.name).map_or(Holder::Program, Holder::Monitor)
    }

    fn custodian(&self) -> Option<&dyn Custodian> {
        None
    }
}

impl Supervision for MicrovmClass {
    fn attempts(&self) -> Attempts {
        Attempts::Agent
    }

    fn hides_files(&self) -> bool {
        false
    }
}

impl Snapshots for MicrovmClass {
    /// Its init hands them out while its processes stand still, and takes them before it has a root.
    fn keeps_files(&self) -> bool {
        true
    }

    fn has_layer_inside(&self) -> bool {
        true
    }

    /// QEMU writes a machine; the other monitors take no order of a sandbox's.
    fn kept_memory(&self, facts: &HostFacts) -> Option<KeptMemory> {
        let monitor = Kind::named(&facts.runtime_of(Class::Microvm)?.name);
        let why = match monitor {
            Some(monitor) => format!("{} is given no orders", monitor.program()),
            None => "QEMU writes the machine".to_owned(),
        };
        Some(KeptMemory { is_kept: monitor.is_none(), why })
    }
}
