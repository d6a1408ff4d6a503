//! Stored machines for the shapes that are asked for.
//!
//! ```text
//! sandboxes --take--> stored, by shape       the first sandbox of a shape finds none, and boots
//!     |                    ^      |
//!   want                  put    removed when nobody has taken it for a while, or for a newer one
//!     +--> one thread: stores one machine at a time
//! ```
//! **A machine is never used again**: what is kept was stored before it could be anybody's, and each
//! sandbox gets a new emulator with its own copy. One that failed is not tried again for a while.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use cofferdam_ambient::clock::Stopwatch;

use super::shape::Shape;
use super::stored_machine::{MachineRestore, StoredMachine};
use crate::host::runtime::Runtime;
use crate::spec::facts::HostFacts;
use crate::spec::machine::{Accel, Machine};
use crate::spec::plan::Plan;

/// Stored machines at once, each with about 90 MB of this worker's memory: a worker's usual shapes.
const MAX_STORED: usize = 4;
/// One that nobody took for so long is given up.
const IDLE_MS: u64 = 300_000;
/// And one that could not be made, or not be restored, is not tried for so long.
const FAILED_MS: u64 = 600_000;
/// Shapes that wait for the thread, of which most are the same.
const MAX_ORDERS: usize = 16;

/// What a stored machine is for: a shape, and the files that it was booted from as they are now.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct MachineKey {
    shape: Shape,
    files: [(u64, u64, i64, i64); 3],
}

impl MachineKey {
    fn of(machine: &Machine, qemu: &Runtime, shape: Shape) -> Option<Self> {
        let one = |path: &Path| {
            let found = fs::metadata(path).ok()?;
            Some((found.dev(), found.ino(), found.ctime(), found.ctime_nsec()))
        };
        Some(Self {
            shape,
            files: [one(&machine.kernel)?, one(&machine.initrd)?, one(&qemu.path)?],
        })
    }
}

#[derive(Debug)]
enum PoolEntry {
    Ready { stored: Arc<StoredMachine>, unused: Stopwatch },
    Failed(Stopwatch),
}

impl PoolEntry {
    fn since(&self) -> &Stopwatch {
        match self {
            Self::Ready { unused: since, .. } | Self::Failed(since) => since,
        }
    }

    /// For how long it is kept yet.
    fn left_ms(&self, idle_ms: u64) -> u64 {
        let limit = match self {
            Self::Ready { .. } => idle_ms,
            Self::Failed(_) => FAILED_MS,
        };
        limit.saturating_sub(self.since().elapsed_ms())
    }
}

type PoolEntries = Arc<Mutex<HashMap<MachineKey, PoolEntry>>>;

/// A machine to be stored, and who waits for it.
struct Order {
    machine: Machine,
    qemu: Runtime,
    shape: Shape,
    done: Option<SyncSender<()>>,
}

/// A worker's stored machines.
#[derive(Debug)]
pub(crate) struct Pool {
    entries: PoolEntries,
    idle_ms: u64,
    /// Its thread ends when this does.
    orders: Mutex<Option<SyncSender<Box<Order>>>>,
}

impl Default for Pool {
    fn default() -> Self {
        Self { entries: PoolEntries::default(), idle_ms: IDLE_MS, orders: Mutex::default() }
    }
}

impl Pool {
    /// What a stored machine for this plan would be; `None` where none is stored.
    pub fn key(plan: &Plan, facts: &HostFacts) -> Option<MachineKey> {
        let (machine, shape) = wanted(plan, facts)?;
        MachineKey::of(machine, &plan.runtime, shape)
    }

    /// A stored machine for this plan, if there is one of its shape.
    pub fn take(&self, plan: &Plan, facts: &HostFacts) -> Option<MachineRestore> {
        let key = Self::key(plan, facts)?;
        let stored = match lock(&self.entries).get_mut(&key)? {
            PoolEntry::Ready { stored, unused } => {
                *unused = Stopwatch::start();
                Arc::clone(stored)
            }
            PoolEntry::Failed(_) => return None,
        };
        let lent = StoredMachine::lend(&stored);
        lent.inspect_err(|error| tracing::warn!(%error, "a stored machine was not lent")).ok()
    }

    /// Has one of this plan's shape made, if none was tried.
    pub fn want(&self, plan: &Plan, facts: &HostFacts) {
        self.order(plan, facts, None);
    }

    /// The same, and waits until it was tried. Blocking, for seconds. Whether there is one now.
    pub fn warm(&self, plan: &Plan, facts: &HostFacts) -> bool {
        let (done, was_done) = sync_channel(1);
        self.order(plan, facts, Some(done));
        // Without an answer there is no thread, or it has too much to do.
        let _ = was_done.recv();
        self.take(plan, facts).is_some()
    }

    /// One from which a machine did not come to life.
    pub fn failed(&self, stored: &Arc<StoredMachine>) {
        for kept in lock(&self.entries).values_mut() {
            match kept {
                PoolEntry::Ready { stored: one, .. } if Arc::ptr_eq(one, stored) => {
                    *kept = PoolEntry::Failed(Stopwatch::start());
                }
                _ => {}
            }
        }
    }

    fn order(&self, plan: &Plan, facts: &HostFacts, done: Option<SyncSender<()>>) {
        let Some((machine, shape)) = wanted(plan, facts) else { return };
        let (machine, qemu) = (machine.clone(), plan.runtime.clone());
        let order = Box::new(Order { machine, qemu, shape, done });
        let mut orders = self.orders.lock().unwrap_or_else(PoisonError::into_inner);
        let sender = match orders.take() {
            Some(sender) => Some(sender),
            None => start(&self.entries, self.idle_ms)
                .inspect_err(log("the thread was not started"))
                .ok(),
        };
        let sent = sender.as_ref().map(|sender| sender.try_send(order));
        // A full line has many of the same.
        if let Some(Ok(()) | Err(TrySendError::Full(_))) = sent {
            *orders = sender;
        }
    }
}

#[cfg(test)]
impl Pool {
    /// One that gives up sooner.
    pub fn with_idle(idle_ms: u64) -> Self {
        Self { idle_ms, ..Self::default() }
    }

    pub fn is_empty(&self) -> bool {
        lock(&self.entries).is_empty()
    }

    /// Keeps one for this plan's shape.
    pub fn put(&self, plan: &Plan, facts: &HostFacts, stored: StoredMachine) {
        let (machine, shape) = wanted(plan, facts).unwrap();
        let key = MachineKey::of(machine, &plan.runtime, shape).unwrap();
        let kept = PoolEntry::Ready { stored: Arc::new(stored), unused: Stopwatch::start() };
        lock(&self.entries).insert(key, kept);
    }
}

/// What a plan's machine would be stored as; `None` where none is.
fn wanted<'a>(plan: &Plan, facts: &'a HostFacts) -> Option<(&'a Machine, Shape)> {
    let machine = facts.machine.as_ref()?;
    match machine.accel {
        // Not tried yet, and less needed: where the processor helps a kernel boots in a third of a second.
        Accel::Kvm => None,
        Accel::Software { .. } => Some((machine, Shape::of(plan, machine))),
    }
}

/// The thread that stores machines and gives them up. It has what it was given when the pool is gone.
fn start(entries: &PoolEntries, idle_ms: u64) -> io::Result<SyncSender<Box<Order>>> {
    let (sender, orders) = sync_channel(MAX_ORDERS);
    let entries = Arc::clone(entries);
    thread::Builder::new()
        .name("machine-pool".to_owned())
        .spawn(move || keep(&entries, idle_ms, &orders))?;
    Ok(sender)
}

fn keep(entries: &PoolEntries, idle_ms: u64, orders: &Receiver<Box<Order>>) {
    loop {
        // Until the first of them is over.
        let next =
            lock(entries).values().map(|kept| kept.left_ms(idle_ms)).min().unwrap_or(idle_ms);
        match orders.recv_timeout(Duration::from_millis(next)) {
            Ok(order) => {
                make(entries, &order);
                if let Some(done) = &order.done {
                    let _ = done.try_send(());
                }
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        lock(entries).retain(|_, kept| kept.left_ms(idle_ms) > 0);
    }
}

fn make(entries: &PoolEntries, order: &Order) {
    let Order { machine, qemu, shape, .. } = order;
    let Some(key) = MachineKey::of(machine, qemu, *shape) else { return };
    if lock(entries).contains_key(&key) {
        return;
    }
    let clock = Stopwatch::start();
    let kept = match StoredMachine::make(machine, qemu, *shape) {
        Ok(stored) => {
            tracing::debug!(mem_mb = shape.mem_mb, ms = clock.elapsed_ms(), "a machine was stored");
            PoolEntry::Ready { stored: Arc::new(stored), unused: Stopwatch::start() }
        }
        Err(why) => {
            tracing::warn!(mem_mb = shape.mem_mb, why, "no machine was stored: machines boot");
            PoolEntry::Failed(Stopwatch::start())
        }
    };
    place(&mut lock(entries), key, kept);
}

/// For a newer one the one goes that was unused for longest.
fn place(entries: &mut HashMap<MachineKey, PoolEntry>, key: MachineKey, kept: PoolEntry) {
    while entries.len() >= MAX_STORED {
        let oldest = entries.iter().max_by_key(|(_, kept)| kept.since().elapsed());
        let Some(oldest) = oldest.map(|(key, _)| key.clone()) else { break };
        entries.remove(&oldest);
    }
    entries.insert(key, kept);
}

fn lock(entries: &PoolEntries) -> MutexGuard<'_, HashMap<MachineKey, PoolEntry>> {
    entries.lock().unwrap_or_else(PoisonError::into_inner)
}

fn log(what: &'static str) -> impl FnOnce(&io::Error) {
    move |error| tracing::warn!(%error, "the pool of machines: {what}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_holds_four_and_the_one_unused_for_longest_goes() {
        let key =
            |mem_mb| MachineKey { shape: Shape { mem_mb, cpus: 1 }, files: [(0, 0, 0, 0); 3] };
        let mut entries = HashMap::new();
        for mem_mb in 1..=6 {
            place(&mut entries, key(mem_mb), PoolEntry::Failed(Stopwatch::start()));
        }
        let mut left: Vec<_> = entries.keys().map(|key| key.shape.mem_mb).collect();
        left.sort_unstable();
        assert_eq!(left, [3, 4, 5, 6]);
    }
}
