//! The machine's own limits: the task runs in a group that its kernel holds, and that counts.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use cofferdam_guest::setup::Setup;
use cofferdam_guest::wire::{LimitCounters, NoRoute};
use rustix::fs::statvfs;

use super::fault::{CGROUPS, Fault, TRACES, at, write};
use super::network;
use super::trace::Trace;
use crate::agent::sleep_ms;

/// How often the layer is looked at while a command runs: as the host does where it can.
const LOOK_EVERY_MS: u64 = 50;
/// A layer with less room than this is full: no file of any use fits.
const ROOM_BYTES: u64 = 64 * 1024;

/// The counters stay readable for the agent when their tree is out of sight. Of one machine, so of
/// one process.
static COUNTERS: OnceLock<LimitFiles> = OnceLock::new();

#[derive(Debug)]
struct LimitFiles {
    memory: File,
    pids: File,
    network: network::Counters,
    /// Absent where the kernel traces nothing.
    trace: Option<Trace>,
}

/// The task's group.
pub(super) const TASK: &str = "task";
/// Where the agent is while that group stands still.
pub(super) const APART: &str = "apart";

/// Makes the groups without limits.
pub(super) fn prepare(tree: &Path) -> Result<(), Fault> {
    write(tree.join("cgroup.subtree_control"), "+memory +pids")?;
    fs::create_dir(tree.join(APART)).map_err(at("the agent's group"))?;
    fs::create_dir(tree.join(TASK)).map_err(at("the task's group"))
}

/// Moves the calling process, and so all that it starts, into the group.
pub(super) fn enter() -> Result<(), Fault> {
    let group = Path::new(CGROUPS).join(TASK);
    write(group.join("cgroup.procs"), "0")?;
    let open = |name: &str| File::open(group.join(name)).map_err(at(name));
    let network = network::Counters::open().map_err(at("the network's counters"))?;
    let trace = Trace::start(Path::new(TRACES)).ok();
    let (memory, pids) = (open("memory.events")?, open("pids.events")?);
    let counters = LimitFiles { memory, pids, network, trace };
    // It is set once: there is one entry in a machine's life.
    let _ = COUNTERS.set(counters);
    Ok(())
}

/// Sets the sandbox's limits.
pub(super) fn set(setup: &Setup) -> Result<(), Fault> {
    let group = Path::new(CGROUPS).join(TASK);
    write(group.join("memory.max"), &setup.mem_bytes.to_string())?;
    write(group.join("pids.max"), &setup.pids.to_string())
}

/// What the machine's kernel counted so far; `None` outside of a machine.
pub fn counted() -> Option<LimitCounters> {
    let LimitFiles { memory, pids, .. } = COUNTERS.get()?;
    Some(LimitCounters {
        oom_kills: keyed(memory, "oom_kill"),
        pids_refused: keyed(pids, "max"),
        layer_full: false,
        no_routes: 0,
    })
}

/// Attempts that no route led anywhere since the machine is somebody's; 0 outside of a machine.
pub fn no_routes() -> u64 {
    COUNTERS.get().map_or(0, |counters| counters.network.no_routes())
}

/// Where those led that were not told yet, as far as the kernel traced them.
pub fn tried() -> Vec<NoRoute> {
    let trace = COUNTERS.get().and_then(|counters| counters.trace.as_ref());
    trace.map(Trace::take).unwrap_or_default()
}

/// Whether the machine's layer was ever seen full. Outside of a machine nothing is looked at: there
/// the layer is the host's, and it looks itself.
#[derive(Debug, Default)]
pub struct LayerWatch {
    full: AtomicBool,
}

impl LayerWatch {
    /// Looks now and then for as long as it is polled, and never ends.
    pub async fn during(&self) {
        if COUNTERS.get().is_none() {
            return std::future::pending().await;
        }
        loop {
            sleep_ms(LOOK_EVERY_MS).await;
            self.look();
        }
    }

    /// Looks once more, and says what all looks saw.
    pub fn end(&self) -> bool {
        if COUNTERS.get().is_some() {
            self.look();
        }
        self.full.load(Ordering::Relaxed)
    }

    fn look(&self) {
        // Of an overlay: that of its writable layer.
        let is_full = statvfs("/").is_ok_and(|layer| {
            layer.f_bavail.saturating_mul(layer.f_frsize) < ROOM_BYTES || layer.f_favail == 0
        });
        if is_full {
            self.full.store(true, Ordering::Relaxed);
        }
    }
}

fn keyed(file: &File, key: &str) -> u64 {
    // Six short lines.
    let mut buffer = [0; 512];
    let count = file.read_at(&mut buffer, 0).unwrap_or(0);
    let text = std::str::from_utf8(buffer.get(..count).unwrap_or_default()).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' '));
    line.and_then(|number| number.trim().parse().ok()).unwrap_or(0)
}
