//! Monitors that are told what to do over HTTP on a unix socket: Firecracker and Cloud Hypervisor.
//!
//! ```text
//! doctor -> nobody, namespaces of its own [ monitor, api socket ]   GET  what are you
//!                                                                   PUT  a machine, start it
//!                    console  <- our init's first words, or none    (only where KVM works)
//! ```
//! They are looked at by `doctor` and never chosen: both give a machine no port like the one that our
//! init opens, and take a disk as a file or from a vhost-user server, neither of which the worker is.
//! So the look goes as far as it can be true: they answer, and they start our kernel and our init.

mod call;
#[cfg(test)]
mod tests;

use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use cofferdam_ambient::clock::{self, Stopwatch};
use cofferdam_ambient::random;
use hyper::Method;
use serde_json::{Value, json};
use tokio::process::{Child, Command};

use self::call::{Call, call};
use super::machine::{Accel, Machine};
use super::qemu::{KERNEL_LINE, USER};
use crate::host::HostFacts;
use crate::runtime;

/// A monitor listens after some milliseconds; a busy host takes longer.
const LISTEN_MS: u64 = 5_000;
/// A machine on real hardware speaks after 0.3 s.
const BOOT_MS: u64 = 5_000;
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Of a machine that only shows that it starts.
const MEM_MB: u64 = 192;
/// In the directory that is the monitor's own and where it is started: paths from there.
const SOCKET: &str = "api";
const CONSOLE: &str = "console";
/// The kernel and the initial files, which its user may not look up.
const KERNEL: &str = "/proc/self/fd/3";
const INITRD: &str = "/proc/self/fd/4";
const OPEN: &str = "exec 3< \"$1\" 4< \"$2\" || exit 125; shift 2; exec \"$@\"";
/// How the lines of our init begin.
const INIT_SAYS: &[u8] = b"cofferdam-machine:";
const UNDRIVEN: &str = "not driven by this version";

/// One of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Monitor {
    Firecracker,
    CloudHypervisor,
}

impl Monitor {
    pub const ALL: [Self; 2] = [Self::Firecracker, Self::CloudHypervisor];

    /// Its program, as it is packaged.
    pub const fn program(self) -> &'static str {
        match self {
            Self::Firecracker => "firecracker",
            Self::CloudHypervisor => "cloud-hypervisor",
        }
    }

    /// As a finding is called.
    pub const fn finding(self) -> &'static str {
        match self {
            Self::Firecracker => "monitor.firecracker",
            Self::CloudHypervisor => "monitor.cloud-hypervisor",
        }
    }

    fn args(self) -> [&'static str; 2] {
        match self {
            Self::Firecracker => ["--api-sock", SOCKET],
            Self::CloudHypervisor => ["--api-socket", SOCKET],
        }
    }

    /// Asks what it is.
    fn greeting(self) -> Call {
        match self {
            Self::Firecracker => Call::get("/"),
            Self::CloudHypervisor => Call::get("/api/v1/vmm.ping"),
        }
    }

    /// Its version in the answer.
    fn version(self, answer: &Value) -> Option<&str> {
        let field = match self {
            Self::Firecracker => "vmm_version",
            Self::CloudHypervisor => "version",
        };
        answer.get(field)?.as_str()
    }

    /// Describes a machine without a disk and starts it, in this order.
    fn start(self) -> Vec<Call> {
        match self {
            Self::Firecracker => vec![
                Call::put("/machine-config", json!({"vcpu_count": 1, "mem_size_mib": MEM_MB})),
                Call::put(
                    "/boot-source",
                    json!({
                        "kernel_image_path": KERNEL,
                        "initrd_path": INITRD,
                        "boot_args": KERNEL_LINE,
                    }),
                ),
                Call::put("/actions", json!({"action_type": "InstanceStart"})),
            ],
            Self::CloudHypervisor => vec![
                Call::put(
                    "/api/v1/vm.create",
                    json!({
                        "cpus": {"boot_vcpus": 1, "max_vcpus": 1},
                        "memory": {"size": MEM_MB * 1024 * 1024},
                        "payload": {
                            "kernel": KERNEL, "initramfs": INITRD, "cmdline": KERNEL_LINE,
                        },
                        "serial": {"mode": "File", "file": CONSOLE},
                        "console": {"mode": "Off"},
                    }),
                ),
                Call { method: Method::PUT, path: "/api/v1/vm.boot", body: None },
            ],
        }
    }

    /// Ends it; Firecracker has no such call and is killed.
    fn end(self) -> Option<Call> {
        match self {
            Self::Firecracker => None,
            Self::CloudHypervisor => {
                Some(Call { method: Method::PUT, path: "/api/v1/vmm.shutdown", body: None })
            }
        }
    }
}

/// What `doctor` says of one that is installed; `None` where it is not.
pub(crate) async fn look(monitor: Monitor, facts: &HostFacts) -> Option<String> {
    let program = runtime::search(monitor.program())?;
    let machine = facts.machine.as_ref();
    let kvm = machine.filter(|machine| machine.accel == Accel::Kvm);
    let place = facts.live_dir.join(format!("monitor-{}", random::secret_hex(8)));
    let said = look_in(monitor, &program, &place, kvm).await;
    if let Err(error) = fs::remove_dir_all(&place) {
        tracing::warn!(%error, "the directory of a monitor was not removed");
    }
    Some(said)
}

async fn look_in(
    monitor: Monitor,
    program: &Path,
    place: &Path,
    machine: Option<&Machine>,
) -> String {
    match Trial::begin(monitor, program, place, machine).await {
        Ok(trial) => {
            let said = trial.run(machine.is_some()).await;
            trial.end().await;
            said
        }
        Err(error) => format!("{UNDRIVEN}; it does not start: {error}"),
    }
}

/// A monitor that runs.
struct Trial {
    monitor: Monitor,
    place: PathBuf,
    child: Child,
}

impl Trial {
    async fn begin(
        monitor: Monitor,
        program: &Path,
        place: &Path,
        machine: Option<&Machine>,
    ) -> io::Result<Self> {
        fs::create_dir(place)?;
        fs::set_permissions(place, fs::Permissions::from_mode(0o700))?;
        let user = USER.parse().map_err(io::Error::other)?;
        chown(place, Some(user), Some(user))?;
        let console = File::create(place.join(CONSOLE))?;
        chown(place.join(CONSOLE), Some(user), Some(user))?;
        let keeper = |name: &str| {
            let absent = || io::Error::other(format!("{name} was not found"));
            runtime::search(name).ok_or_else(absent)
        };
        let files: [OsString; 2] = match machine {
            Some(machine) => [machine.kernel.clone().into(), machine.initrd.clone().into()],
            None => ["/dev/null".into(), "/dev/null".into()],
        };
        let mut command = Command::new("/bin/sh");
        command
            .args(["-c", OPEN, "sh"])
            .args(files)
            .arg(keeper("unshare")?)
            .args(["--net", "--ipc", "--uts", "--mount", "--pid", "--fork", "--kill-child"])
            .args(["--mount-proc", "--"])
            .arg(keeper("setpriv")?)
            .args(["--reuid", USER, "--regid", USER, "--no-new-privs", "--pdeathsig", "KILL"])
            .args(["--bounding-set=-all", "--inh-caps=-all"]);
        match machine.and_then(|machine| super::kvm::group(&machine.accel)) {
            Some(group) => command.args(["--groups", &group.to_string()]),
            None => command.arg("--clear-groups"),
        };
        command.arg("--").arg(program).args(monitor.args()).current_dir(place).env_clear();
        command.stdin(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
        match monitor {
            Monitor::Firecracker => command.stdout(console),
            Monitor::CloudHypervisor => command.stdout(Stdio::null()),
        };
        Ok(Self { monitor, place: place.to_owned(), child: command.spawn()? })
    }

    async fn call(&self, wanted: &Call) -> Result<Value, String> {
        call(&self.place.join(SOCKET), wanted).await
    }

    /// What comes of it, in words.
    async fn run(&self, boots: bool) -> String {
        let clock = Stopwatch::start();
        while !self.place.join(SOCKET).exists() && clock.elapsed_ms() < LISTEN_MS {
            clock::sleep(LOOK_EVERY).await;
        }
        let version = match self.call(&self.monitor.greeting()).await {
            Ok(answer) => match self.monitor.version(&answer) {
                Some(version) => version.to_owned(),
                None => "a version that it does not say".to_owned(),
            },
            Err(error) => return format!("{UNDRIVEN}; it does not answer: {error}"),
        };
        if !boots {
            return format!("{version} answers; {UNDRIVEN}, and without KVM it runs no machine");
        }
        for wanted in self.monitor.start() {
            if let Err(error) = self.call(&wanted).await {
                return format!("{version}; {UNDRIVEN}; {} was refused: {error}", wanted.path);
            }
        }
        let clock = Stopwatch::start();
        while clock.elapsed_ms() < BOOT_MS {
            let said = fs::read(self.place.join(CONSOLE)).unwrap_or_default();
            if memchr::memmem::find(&said, INIT_SAYS).is_some() {
                return format!("{version} starts our kernel and our init; {UNDRIVEN}");
            }
            clock::sleep(LOOK_EVERY).await;
        }
        format!("{version}; {UNDRIVEN}; a machine that it started said nothing")
    }

    async fn end(mut self) {
        if let Some(wanted) = self.monitor.end() {
            // Killed in any case: the answer is of no use.
            let _ = self.call(&wanted).await;
        }
        if let Err(error) = self.child.kill().await {
            tracing::warn!(%error, "a monitor was not ended");
        }
    }
}
