//! Monitors that are told over HTTP on a unix socket what their machine is: Firecracker, Cloud Hypervisor.
//!
//! ```text
//! worker  --- api: describe, start ------------> monitor, as nobody, in our cgroups, without a network
//!   disk's server  --- vhost-user -------------- virtio disk, read-only
//!   agent's client <-- unix socket -- monitor -- vsock <- init -> agent -> task
//! ```
//! They run machines with KVM alone, so each is tried before it is taken, as KVM is; what is absent says
//! why. Both start an ELF file, and take what they open from their working directory or as a number.

mod call;
mod cloud;
mod directory;
#[cfg(test)]
mod fake;
mod firecracker;
mod machine_spec;
#[cfg(test)]
mod tests;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use cofferdam_ambient::random;
use cofferdam_guest::setup::GREETING;
use tokio::process::Command;

use self::cloud::CloudHypervisor;
pub(crate) use self::directory::{DiskServer, MonitorDir};
use self::firecracker::Firecracker;
use self::machine_spec::Monitor;
use super::disk::{CurrentDisk, Disk};
use super::kernel::{Absent, Form, STREAM_MODULES};
use super::launcher::{self, LauncherCommand, LauncherName};
use super::shape::Shape;
use super::{kvm, tree};
use crate::host::live;
use crate::host::runtime::{self, Runtime};
use crate::host::task::blocking;
use crate::spec::facts::HostFacts;
use crate::spec::machine::Machine;
use crate::spec::plan::Plan;

/// The working directory, in the sandbox's.
const DIR: &str = "monitor";
/// All that it prints is our log, the machine's console with it.
const OPEN: &str = "3< \"$1\" 4< \"$2\" 1>&2";
/// A machine on real hardware is there after 0.3 s.
const TRIAL_MS: u64 = 10_000;
const TRIAL: Shape = Shape { mem_mb: 192, cpus: 1 };

/// One of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Firecracker,
    CloudHypervisor,
}

impl Kind {
    pub const ALL: [Self; 2] = [Self::Firecracker, Self::CloudHypervisor];

    /// The program, as it is packaged, and as it is asked for.
    pub const fn program(self) -> &'static str {
        match self {
            Self::Firecracker => "firecracker",
            Self::CloudHypervisor => "cloud-hypervisor",
        }
    }

    /// The one of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.program() == name)
    }

    /// As a finding is called.
    pub const fn finding(self) -> &'static str {
        match self {
            Self::Firecracker => "monitor.firecracker",
            Self::CloudHypervisor => "monitor.cloud-hypervisor",
        }
    }

    const fn remedy(self) -> &'static str {
        match self {
            Self::Firecracker => {
                "install firecracker 1.6 or later, or start without --runtime firecracker"
            }
            Self::CloudHypervisor => {
                "install cloud-hypervisor, or start without --runtime cloud-hypervisor"
            }
        }
    }

    const fn remedy_kvm(self) -> &'static str {
        match self {
            Self::Firecracker => {
                "a host whose processor runs machines, or start without --runtime firecracker"
            }
            Self::CloudHypervisor => {
                "a host whose processor runs machines, or start without --runtime cloud-hypervisor"
            }
        }
    }

    pub fn monitor(self) -> &'static dyn Monitor {
        match self {
            Self::Firecracker => &Firecracker,
            Self::CloudHypervisor => &CloudHypervisor,
        }
    }

    /// The command of a monitor in its directory; `named` is by what an orphan is found.
    fn command(
        self,
        program: &Path,
        machine: &Machine,
        groups: &[PathBuf],
        named: Option<LauncherName<'_>>,
        place: &MonitorDir,
    ) -> Command {
        let files = [machine.kernel.as_path(), machine.initrd.as_path()];
        let hold =
            LauncherCommand { machine, groups, open: OPEN, files, writes_nothing: None, named };
        let mut command = launcher::command(&hold);
        command.arg(program).args(self.monitor().args());
        command.current_dir(place.dir()).env_clear().stdin(Stdio::null()).stderr(Stdio::piped());
        command.kill_on_drop(true);
        place.lent.open_in(&mut command);
        command
    }
}

/// The directory of a plan's machine, and the command that is executed in it. Within a runtime.
pub(crate) fn prepare(
    kind: Kind,
    plan: &Plan,
    groups: &[PathBuf],
    machine: &Machine,
    disk: Arc<CurrentDisk>,
) -> io::Result<(MonitorDir, DiskServer, Command)> {
    let dir = &plan.traces.dir;
    let (place, serving) = MonitorDir::make(&dir.join(DIR), disk, Shape::of(plan, machine))?;
    let named = Some(LauncherName { id: plan.traces.id.as_str(), dir });
    let command = kind.command(&plan.runtime.path, machine, groups, named, &place);
    Ok((place, serving, command))
}

/// Looks for all that machines of this kind are started from. The first time after the host's start one
/// is booted. Blocking.
pub(crate) fn detect(kind: Kind, state: &Path, guest: &Path) -> Result<(Machine, Runtime), Absent> {
    let program = kind.program();
    let mut found = runtime::named(program)
        .ok_or_else(|| (format!("{program} was not found"), kind.remedy()))?;
    program.clone_into(&mut found.name);
    kvm::device().map_err(|why| (format!("{program}: {why}"), kind.remedy_kvm()))?;
    let machine = Machine::prepared(state, guest, &STREAM_MODULES, Form::Plain)?;
    let what = format!("{program} {} {}", found.version, machine.release);
    let boot = || tried(kind, &found.path, &machine, Duration::from_millis(TRIAL_MS));
    kvm::shown(&what, boot).map_err(|why| (format!("{program}: {why}"), kind.remedy_kvm()))?;
    found.version = format!("{}, Linux {}, KVM", found.version, machine.release);
    Ok((machine, found))
}

/// What `doctor` says of one that is installed; `None` where it is not.
pub(crate) async fn look(kind: Kind, facts: &HostFacts) -> Option<String> {
    let version = runtime::named(kind.program())?.version;
    let (state, guest) = (facts.state_dir.clone(), facts.guest.clone());
    Some(match blocking(move || detect(kind, &state, &guest)).await {
        Ok((_, found)) => {
            let program = kind.program();
            format!("{}: makes machines, and is taken with --runtime {program}", found.version)
        }
        Err((why, _)) => format!("{version}: makes no machines here: {why}"),
    })
}

/// Boots a machine that is nobody's until its init says that it is ready; or says why it is not.
/// Blocking, on a thread of its own, whatever runs on this one.
fn tried(kind: Kind, program: &Path, machine: &Machine, limit: Duration) -> Result<(), String> {
    let trial = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.map_err(words)?.block_on(trial(kind, program, machine, limit))
    };
    thread::scope(|scope| scope.spawn(trial).join())
        .unwrap_or_else(|_| Err("the trial broke off".to_owned()))
}

async fn trial(
    kind: Kind,
    program: &Path,
    machine: &Machine,
    limit: Duration,
) -> Result<(), String> {
    let parent = Path::new(kvm::CACHE);
    live::private_dir(parent).map_err(words)?;
    let dir = parent.join(format!("trial-{}", random::secret_hex(8)));
    let done = trial_in(&dir, kind, program, machine, limit).await;
    if let Err(error) = fs::remove_dir_all(&dir) {
        tracing::warn!(%error, "the directory of a monitor was not removed");
    }
    done
}

async fn trial_in(
    dir: &Path,
    kind: Kind,
    program: &Path,
    machine: &Machine,
    limit: Duration,
) -> Result<(), String> {
    let empty = || Ok::<_, io::Error>(Arc::new(super::Image::of(tree::directory([]))?));
    let disk = empty().and_then(|first| Disk::new(first, empty()?)).map_err(words)?;
    let (place, _serving) =
        MonitorDir::make(dir, CurrentDisk::new(Arc::new(disk)), TRIAL).map_err(words)?;
    let mut command = kind.command(program, machine, &[], None, &place);
    let mut child = command.stderr(Stdio::null()).spawn().map_err(words)?;
    let met = async {
        let mut stream = place.begin(kind.monitor()).await?;
        match super::setup::line(&mut stream).await {
            Ok(said) if said == GREETING => Ok(()),
            Ok(_) => Err("it said something else".to_owned()),
            Err(error) => Err(error.to_string()),
        }
    };
    let met = tokio::select! {
        biased;
        met = tokio::time::timeout(limit, met) => met,
        _ = child.wait() => Ok(Err("it ended".to_owned())),
    };
    if let Err(error) = child.kill().await {
        tracing::warn!(%error, "a monitor was not ended");
    }
    met.unwrap_or_else(|_| Err(format!("it said nothing within {} ms", limit.as_millis())))
}

#[expect(clippy::needless_pass_by_value, reason = "a step that maps an error")]
fn words(error: io::Error) -> String {
    error.to_string()
}
