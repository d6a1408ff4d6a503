//! What a sandbox weighs where more programs want to run than a host has processors.
//!
//! ```text
//! host's own programs    one each
//! all sandboxes          as many as the host has processors
//!   of one tenant        as many as they ask for together, and no more than the host has
//!     one sandbox        as many as it asks for
//! ```
//! A kernel gives a group of processes one process's part unless it is told otherwise, however many are in it. So without a word
//! all sandboxes together had what one program of the host has, and a tenant with a hundred had a hundred parts of it.
//!
//! Only processes of this worker are in its table: another one of the same host halves by its own.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cofferdam_contracts::id::TenantId;
use rustix::process::{getpriority_process, setpriority_process};

use crate::host::cgroup::{Cgroups, Hierarchy};
use crate::host::limit;
use crate::host::traces::{CGROUP_PARENT, Traces};

/// Thousandths of a processor, so that sums are exact.
const WHOLE: u64 = 1_000;
/// How a version of cgroups writes weights.
#[derive(Debug, Clone, Copy)]
struct Scale {
    file: &'static str,
    /// One processor's weight, which is that of one process that nobody weighed.
    one: u64,
    /// What the kernel takes.
    least: u64,
    most: u64,
}

const SHARES: Scale = Scale { file: "cpu.shares", one: 1_024, least: 2, most: 262_144 };
const WEIGHT: Scale = Scale { file: "cpu.weight", one: 100, least: 1, most: 10_000 };
/// A tenant's sandboxes weigh more again once they ask for so much less than what they were halved for, in percent: they are not
/// all written anew whenever one ends and the next begins.
const SLACK: u64 = 125;

/// A server's `nice`: with it a process weighs as much as three that nobody weighed. A lower one would let one busy server keep
/// sandboxes of another one of its host from beginning.
const PRIORITY: i32 = -5;

/// Has this process, and what it starts, go before sandboxes where both ask for a processor: all of them are served by it. Agents and
/// sealers give it back for what they run. Call it before any thread is started; where somebody has chosen already, nothing changes.
pub fn go_first() {
    if getpriority_process(None) == Ok(0)
        && let Err(error) = setpriority_process(None, PRIORITY)
    {
        tracing::debug!(%error, "this process waits for processors as its sandboxes do");
    }
}

/// The weights of a worker's sandboxes.
#[derive(Debug, Clone)]
pub(crate) struct Weights {
    tree: Option<Hierarchy>,
    cpus: u32,
    tenants: Arc<Mutex<BTreeMap<TenantId, TenantWeight>>>,
}

/// What one tenant's sandboxes ask for, in thousandths of a processor.
#[derive(Debug, Default)]
struct TenantWeight {
    /// By their groups.
    asked: BTreeMap<PathBuf, u64>,
    /// Each weighs what it asks for, divided by this.
    divisor: u64,
}

/// One sandbox's place in the table, given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Weight {
    all: Weights,
    tenant: TenantId,
    group: PathBuf,
}

impl Weights {
    /// Has all sandboxes of the host weigh what it has processors.
    pub(crate) fn begin(cgroups: &Cgroups, cpus: u32) -> Self {
        let weights =
            Self { tree: cgroups.with("cpu").cloned(), cpus: cpus.max(1), tenants: Arc::default() };
        if let Some(tree) = &weights.tree
            && let Err((path, error)) = weights.weigh_all(tree)
        {
            tracing::warn!(?path, %error, "all sandboxes together weigh as much as one program of this host");
        }
        weights
    }

    fn weigh_all(&self, tree: &Hierarchy) -> Result<(), (PathBuf, io::Error)> {
        let all = tree.mount.join(CGROUP_PARENT);
        limit::make_dir(&all)?;
        if tree.unified {
            limit::write(&tree.mount.join("cgroup.subtree_control"), "+cpu")?;
        }
        let asked = u64::from(self.cpus).saturating_mul(WHOLE);
        // Another process may see more processors of this host, and its operator may want more.
        let (file, wanted) = value(tree.unified, asked);
        let now = fs::read_to_string(all.join(file)).ok().and_then(|text| text.trim().parse().ok());
        if now.is_some_and(|now: u64| now >= wanted) { Ok(()) } else { write(tree, &all, asked) }
    }

    /// A sandbox weighs what it asks for, for as long as the value lives. A weight that cannot be written is the kernel's own.
    pub(crate) fn enter(
        &self,
        tenant: &TenantId,
        traces: &Traces,
        cpu: Option<f64>,
    ) -> Option<Weight> {
        let tree = self.tree.as_ref()?;
        let group = tree.mount.join(&traces.cgroup);
        let most = u64::from(self.cpus).saturating_mul(WHOLE);
        let asked = cpu.map_or(most, thousandths).min(most);
        let mut tenants = self.lock();
        let held = tenants.entry(tenant.clone()).or_default();
        held.asked.insert(group.clone(), asked);
        if !self.settle(held, tree) {
            let _ = write(tree, &group, asked / held.divisor.max(1));
        }
        Some(Weight { all: self.clone(), tenant: tenant.clone(), group })
    }

    fn leave(&self, tenant: &TenantId, group: &Path) {
        let Some(tree) = &self.tree else { return };
        let mut tenants = self.lock();
        let Some(held) = tenants.get_mut(tenant) else { return };
        held.asked.remove(group);
        if held.asked.is_empty() {
            tenants.remove(tenant);
            return;
        }
        self.settle(held, tree);
    }

    /// Writes the weights of all of a tenant's sandboxes where their divisor changed, and says whether it did.
    fn settle(&self, held: &mut TenantWeight, tree: &Hierarchy) -> bool {
        let sum = held.asked.values().fold(0_u64, |sum, asked| sum.saturating_add(*asked));
        let now = divisor(sum, u64::from(self.cpus).saturating_mul(WHOLE), held.divisor);
        if now == held.divisor {
            return false;
        }
        held.divisor = now;
        for (group, asked) in &held.asked {
            // One that has just ended has no group.
            let _ = write(tree, group, asked / now);
        }
        true
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<TenantId, TenantWeight>> {
        self.tenants.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Weight {
    fn drop(&mut self) {
        self.all.leave(&self.tenant, &self.group);
    }
}

/// By how much each sandbox's weight is divided: a power of two, so that a table of thousands is written anew a few times and not at
/// each creation. Pure.
fn divisor(sum: u64, most: u64, now: u64) -> u64 {
    let of = |sum: u64| sum.div_ceil(most.max(1)).max(1).next_power_of_two();
    let up = of(sum);
    if up > now { up } else { now.min(of(sum.saturating_mul(SLACK) / 100)) }
}

/// Of a number of processors. Pure.
fn thousandths(cpu: f64) -> u64 {
    format!("{:.0}", cpu * 1_000.0).parse().unwrap_or(WHOLE)
}

/// In the words of a tree's version. Pure.
fn value(unified: bool, asked: u64) -> (&'static str, u64) {
    let Scale { file, one, least, most } = if unified { WEIGHT } else { SHARES };
    (file, (asked.saturating_mul(one) / WHOLE).clamp(least, most))
}

fn write(tree: &Hierarchy, group: &Path, asked: u64) -> Result<(), (PathBuf, io::Error)> {
    let (file, value) = value(tree.unified, asked);
    limit::write(&group.join(file), &value.to_string())
}

#[cfg(test)]
mod tests {
    use cofferdam_contracts::id::SandboxId;

    use super::*;
    use crate::host::cgroup::CgroupMode;

    #[test]
    fn a_weight_is_what_is_asked_for_in_the_words_of_both_versions() {
        let of = |cpu| [false, true].map(|unified| value(unified, thousandths(cpu)).1);
        assert_eq!(of(1.0), [1_024, 100]);
        assert_eq!(of(0.5), [512, 50]);
        assert_eq!(of(0.001), [2, 1]);
        assert_eq!(of(1_000.0), [262_144, 10_000]);
        assert_eq!(of(f64::NAN), [1_024, 100]);
    }

    #[test]
    fn what_a_tenant_asks_beyond_the_host_is_halved_and_not_at_each_end_anew() {
        let of = |sum, now| divisor(sum, 2_000, now);
        assert_eq!([0, 2_000, 2_001, 4_001, 100_000].map(|sum| of(sum, 1)), [1, 1, 2, 4, 64]);
        // One ends and the next begins.
        assert_eq!([of(2_001, 2), of(1_700, 2), of(1_600, 2)], [2, 2, 1]);
        assert_eq!(of(u64::MAX, 1), (u64::MAX / 2_000 + 1).next_power_of_two());
    }

    #[test]
    fn a_tenants_sandboxes_weigh_no_more_than_the_host_and_others_weigh_what_they_did() {
        let mount = tempfile::tempdir().unwrap();
        let controllers = vec!["cpu".to_owned(), "cpuacct".to_owned()];
        let tree = Hierarchy { mount: mount.path().to_owned(), controllers, unified: false };
        let made = |traces: &Traces| {
            let group = mount.path().join(&traces.cgroup);
            fs::create_dir_all(&group).unwrap();
            fs::write(group.join("cpu.shares"), "1024").unwrap();
            group
        };
        let read = |group: &Path| -> u64 {
            fs::read_to_string(group.join("cpu.shares")).unwrap().parse().unwrap()
        };
        let all = mount.path().join(CGROUP_PARENT);
        fs::create_dir(&all).unwrap();
        fs::write(all.join("cpu.shares"), "1024").unwrap();
        let weights = Weights::begin(&Cgroups { mode: CgroupMode::V1, hierarchies: vec![tree] }, 2);
        assert_eq!(read(&all), 2_048);

        let [many, one] = ["many", "one"].map(|name| TenantId::parse(name).unwrap());
        let traces = |name: usize| {
            let id = SandboxId::parse(&format!("sb{name:020x}")).unwrap();
            Traces::of(mount.path(), mount.path(), &id)
        };
        let alone = made(&traces(99));
        let _alone = weights.enter(&one, &traces(99), Some(1.0)).unwrap();
        let mut held = Vec::new();
        let mut groups = Vec::new();
        for at in 0..16 {
            groups.push(made(&traces(at)));
            held.push(weights.enter(&many, &traces(at), Some(1.0)).unwrap());
            let sum: u64 = groups.iter().map(|group| read(group)).sum();
            assert!((1_024..=2_048).contains(&sum), "{at}: {sum}");
        }
        assert_eq!((read(&alone), read(&groups[0]), read(&groups[15])), (1_024, 128, 128));
        held.truncate(1);
        assert_eq!(read(&groups[0]), 1_024);
        drop(held);
        assert!(!weights.lock().contains_key(&many));
    }
}
