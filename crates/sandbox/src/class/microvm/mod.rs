//! The class `microvm`: a kernel of its own on virtual hardware, which [`crate::machine`] makes.

mod monitor;

use std::io;

use cofferdam_contracts::sandbox::{AccessMode, Limits, SandboxRequest};
use cofferdam_contracts::session::HardwareIsolation;
use tokio::process::Command;

use crate::class::detect::{HostRuntimes, absent};
use crate::class::input_mounts::{Medium, MountRefusal};
use crate::class::isolation::{
    Attempts, ClassProfile, Custodian, Custody, HostLayout, InputMounts, Launch, LaunchInput,
    LaunchResult, RuntimeFuture, Snapshots, StartError, Supervision,
};
use crate::class::memory_support::MemorySupport;
use crate::class::program;
use crate::host::hostpath::HostSource;
use crate::machine::monitor::Kind;
use crate::machine::{EmulatorOrders, GuestMount, Parts, command, host_limits};
use crate::spec::class::{Class, Offer};
use crate::spec::facts::HostFacts;
use crate::spec::machine::Accel;
use crate::spec::plan::Plan;
use crate::spec::refuse::{Check, full_access, is_host, within};

/// Processes of a task: what the machine's kernel numbers, less its own threads.
const MAX_PIDS: u64 = 32_000;
/// The layer on the host holds a sentinel and nothing of the task's.
const HOST_LAYER_MB: u64 = 1;

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
    fn gives(&self, access: AccessMode) -> Result<(), MountRefusal> {
        if access == AccessMode::Full { Err(MountRefusal::Full) } else { Ok(()) }
    }

    fn medium(&self) -> Medium {
        Medium::Machine
    }
}

impl Launch for MicrovmClass {
    /// Its layer on the host holds a sentinel and nothing of the task's.
    fn host_layout(
        &self,
        plan: &Plan,
        base: &HostSource,
        asked: &[GuestMount],
        facts: &HostFacts,
    ) -> HostLayout {
        let layout = HostLayout::of(plan, self.host_limits(plan.effective.limits), facts);
        let parts = Some(Parts::of(plan, base, asked, facts));
        HostLayout { layer_mb: Some(HOST_LAYER_MB), parts, ..layout }
    }

    fn start<'a>(
        &'a self,
        on: LaunchInput<'a>,
    ) -> RuntimeFuture<'a, Result<LaunchResult, StartError>> {
        Box::pin(async move {
            match Kind::named(&on.plan.runtime.name) {
                Some(kind) => monitor::start(kind, on).await,
                None => program::start(self, on),
            }
        })
    }

    fn command(&self, on: &LaunchInput<'_>) -> Option<Command> {
        // Without a machine the class is absent, and no plan names it.
        let machine = on.facts.machine.as_ref().filter(|_| on.memory.is_none())?;
        Some(command(on.plan, on.groups, machine, on.lent.as_ref()))
    }

    fn orders(&self, command: &mut Command) -> io::Result<Option<EmulatorOrders>> {
        EmulatorOrders::to(command).map(Some)
    }

    fn is_killed_with_us(&self) -> bool {
        true
    }
}

impl Custody for MicrovmClass {
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
    fn kept_memory(&self, facts: &HostFacts) -> Option<MemorySupport> {
        let monitor = Kind::named(&facts.runtime_of(Class::Microvm)?.name);
        let why = match monitor {
            Some(monitor) => format!("{} is given no orders", monitor.program()),
            None => "QEMU writes the machine".to_owned(),
        };
        Some(MemorySupport { is_kept: monitor.is_none(), why })
    }
}

/// What it does less well than the class `container`.
fn weak(accel: Option<&Accel>) -> Vec<String> {
    let mut weak = vec![
        "the emulator runs as nobody under its own system call filter: it could read what every user \
         of this host can read"
            .to_owned(),
    ];
    if let Some(Accel::Software { why }) = accel {
        weak.push(format!("one processor, emulated in software, about ten times slower: {why}"));
        weak.push(
            "machines of one size start as copies of one that was stored: their kernels and agents \
             have the same addresses and early secrets"
                .to_owned(),
        );
    }
    weak
}
