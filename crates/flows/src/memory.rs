//! Memory admission: the limits of the sandboxes that run at once fit this host.
//!
//! Each sandbox is held to its own limit by its cgroup, but limits that add up to more than the host
//! has would let tenants end each other, or the host's own programs, by the kernel's choice of a
//! victim. So a task takes its limit out of the worker's budget before anything of it is made, and
//! gives it back once its wipe has ended. Tasks wait in the order in which they came: a large one is
//! not overtaken for ever by small ones.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The share of a host's memory that sandboxes get where no `--memory-mb` says otherwise: the rest
/// is the database's, the worker's and the kernel's.
const SHARE: (u64, u64) = (9, 10);

/// What a worker's sandboxes may take together. One permit is one MiB.
#[derive(Debug)]
pub(crate) struct MemoryBudget {
    total_mb: u32,
    free: Arc<Semaphore>,
}

/// A part of the budget, given back when it is dropped.
#[derive(Debug)]
pub(crate) struct MemoryShare {
    _permit: OwnedSemaphorePermit,
}

/// A sandbox that could never start here.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "limits.memMB: the sandbox needs {needed_mb} MiB of this host, and its sandboxes may take \
     {total_mb} MiB together; lower the limit, or start the worker with a larger --memory-mb"
)]
pub(crate) struct TooLarge {
    needed_mb: u64,
    total_mb: u32,
}

impl MemoryBudget {
    /// Of a host with this much memory, unless the operator named a budget. In MiB.
    pub(crate) fn new(host_mb: u64, named_mb: Option<u64>) -> Self {
        let (part, whole) = SHARE;
        let total = named_mb.unwrap_or(host_mb / whole * part).max(1);
        let total_mb = u32::try_from(total).unwrap_or(u32::MAX);
        let permits = usize::try_from(total_mb).unwrap_or(usize::MAX).min(Semaphore::MAX_PERMITS);
        Self { total_mb, free: Arc::new(Semaphore::new(permits)) }
    }

    /// How many permits a sandbox of `needed_mb` takes.
    ///
    /// # Errors
    /// [`TooLarge`] where even an idle worker has not that much.
    pub(crate) fn admit(&self, needed_mb: u64) -> Result<u32, TooLarge> {
        u32::try_from(needed_mb)
            .ok()
            .filter(|needed| *needed <= self.total_mb)
            .ok_or(TooLarge { needed_mb, total_mb: self.total_mb })
    }

    /// Waits until so many permits are free. Dropping the future gives the place in the queue up.
    pub(crate) async fn take(&self, permits: u32) -> Option<MemoryShare> {
        let permit = Arc::clone(&self.free).acquire_many_owned(permits).await.ok()?;
        Some(MemoryShare { _permit: permit })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_keeps_a_tenth_for_itself_unless_the_operator_says_otherwise() {
        assert_eq!(MemoryBudget::new(10_000, None).total_mb, 9_000);
        assert_eq!(MemoryBudget::new(10_000, Some(512)).total_mb, 512);
    }

    #[test]
    fn what_never_fits_is_refused_by_field_and_remedy() {
        let refused = MemoryBudget::new(10_000, Some(512)).admit(513).unwrap_err().to_string();
        assert!(refused.starts_with("limits.memMB: the sandbox needs 513 MiB"), "{refused}");
        assert!(refused.contains("--memory-mb"), "{refused}");
        assert_eq!(MemoryBudget::new(10_000, Some(512)).admit(512), Ok(512));
        assert!(MemoryBudget::new(10_000, None).admit(u64::MAX).is_err());
    }

    #[tokio::test]
    async fn a_small_one_that_came_later_does_not_overtake_a_large_one() {
        let budget = Arc::new(MemoryBudget::new(0, Some(100)));
        let first = budget.take(60).await.unwrap();
        let (said, mut heard) = tokio::sync::mpsc::unbounded_channel();
        let mut waiting = Vec::new();
        for (name, mb) in [("large", 80), ("small", 10)] {
            let (budget, said) = (Arc::clone(&budget), said.clone());
            waiting.push(tokio::spawn(async move {
                let share = budget.take(mb).await;
                said.send(name).unwrap();
                share
            }));
            // On one thread: each is in the queue before the next one is begun.
            tokio::task::yield_now().await;
        }
        assert!(heard.try_recv().is_err(), "neither fits behind 60 of 100 in order");
        drop(first);
        assert_eq!(heard.recv().await, Some("large"));
        assert_eq!(heard.recv().await, Some("small"));
        for task in waiting {
            assert!(task.await.unwrap().is_some());
        }
    }
}
