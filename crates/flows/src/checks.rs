//! Checks whose length a tenant's own texts decide: forms, replies, recipes and the plans that they become.
//!
//! Their steps are counted and bounded where they are made (`contracts::schema`), yet the longest takes a tenth of a second. So they never
//! keep a thread of the runtime from others, at most half of the host's processors are busy with them, and each tenant has two
//! slots: a tenant that sends many waits for itself.

use std::sync::LazyLock;
use std::time::Duration;

use cofferdam_contracts::error::{ErrorCode, Refusal};
use cofferdam_contracts::id::TenantId;
use rustix::process::{getpriority_process, setpriority_process};
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::key_slots::KeySlots;

/// How long a check waits for its slot.
const PATIENCE: Duration = Duration::from_secs(10);

/// Checks of one tenant that are under way or wait for a processor.
const OF_TENANT: usize = 2;

/// The slots of this process.
static PLACES: LazyLock<CheckSlots> = LazyLock::new(|| CheckSlots::of_host(PATIENCE));

/// A tenant's slot, until it is dropped.
#[derive(Debug)]
pub struct CheckSlot<'a> {
    _own: OwnedSemaphorePermit,
    places: &'a CheckSlots,
}

/// Slots of tenants, and processors for what they check.
#[derive(Debug)]
pub(crate) struct CheckSlots {
    /// Processors that checks may have.
    common: Semaphore,
    tenants: KeySlots<TenantId>,
    patience: Duration,
}

/// Waits for a slot of this tenant's.
///
/// # Errors
/// It has so many checks that this one did not begin in time.
pub async fn place(tenant: &TenantId) -> Result<CheckSlot<'static>, Refusal> {
    PLACES.take(tenant).await
}

/// Does a check of this tenant's in a slot of its own.
///
/// # Errors
/// As [`place`] and [`CheckSlot::run`].
pub async fn check<T>(tenant: &TenantId, work: impl FnOnce() -> T) -> Result<T, Refusal> {
    place(tenant).await?.run(work).await
}

impl CheckSlot<'_> {
    /// Does a check. What else waited for this thread goes on at another one.
    ///
    /// # Errors
    /// Those of other tenants took so long that it did not begin in time.
    pub async fn run<T>(self, work: impl FnOnce() -> T) -> Result<T, Refusal> {
        let turn = tokio::time::timeout(self.places.patience, self.places.common.acquire());
        let _turn = turn.await.ok().and_then(Result::ok).ok_or_else(|| self.places.late())?;
        let work = || {
            let _usual = UsualPriority::begin();
            work()
        };
        Ok(match Handle::try_current().map(|handle| handle.runtime_flavor()) {
            Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(work),
            // Of tests: there is one thread.
            _ => work(),
        })
    }

    /// The same for seconds of work, on a thread apart. `None`: it panicked.
    pub(crate) async fn run_apart<T: Send + 'static>(
        self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let turn = tokio::time::timeout(self.places.patience, self.places.common.acquire());
        let _turn = turn.await.ok()?.ok()?;
        let work = || {
            let _usual = UsualPriority::begin();
            work()
        };
        tokio::task::spawn_blocking(work).await.ok()
    }
}

/// A thread that waits for processors as sandboxes do, and goes first again once this is dropped: a check is a tenant's own work.
#[derive(Debug)]
struct UsualPriority(Option<i32>);

impl UsualPriority {
    fn begin() -> Self {
        let own = getpriority_process(None).ok().filter(|own| *own < 0);
        Self(own.filter(|_| setpriority_process(None, 0).is_ok()))
    }
}

impl Drop for UsualPriority {
    fn drop(&mut self) {
        if let Some(own) = self.0
            && let Err(error) = setpriority_process(None, own)
        {
            tracing::warn!(%error, "a thread of the server waits for processors as its sandboxes do");
        }
    }
}

impl CheckSlots {
    /// Half of this host's processors.
    pub(crate) fn of_host(patience: Duration) -> Self {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        Self::new(processors.div_euclid(2).max(1), patience)
    }

    fn new(common: usize, patience: Duration) -> Self {
        Self { common: Semaphore::new(common), tenants: KeySlots::of(OF_TENANT), patience }
    }

    /// Waits for a slot of this tenant's.
    pub(crate) async fn take(&self, tenant: &TenantId) -> Result<CheckSlot<'_>, Refusal> {
        let own = self.tenants.take(tenant, self.patience).await.ok_or_else(|| self.late())?;
        Ok(CheckSlot { _own: own, places: self })
    }

    fn late(&self) -> Refusal {
        let waited = self.patience.as_secs();
        let why = format!(
            "forms and recipes take so long to check that this one waited {waited} s: send it again later, or make them smaller"
        );
        Refusal::new(ErrorCode::Unavailable, why)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tenant(name: &str) -> TenantId {
        TenantId::parse(name).unwrap()
    }

    #[tokio::test]
    async fn a3f3_a_tenant_has_its_places_and_leaves_the_others_theirs() {
        let places = CheckSlots::new(1, Duration::from_millis(20));
        let (one, other) = (tenant("one"), tenant("other"));
        let held = [places.take(&one).await.unwrap(), places.take(&one).await.unwrap()];
        assert_eq!(places.take(&one).await.unwrap_err().code, ErrorCode::Unavailable);
        // A slot takes no turn before its check runs: another tenant's check gets one.
        assert_eq!(places.take(&other).await.unwrap().run(|| 1).await.unwrap(), 1);
        let turn = places.common.acquire().await.unwrap();
        let late = places.take(&other).await.unwrap().run(|| 1).await.unwrap_err();
        assert_eq!(late.code, ErrorCode::Unavailable);
        drop((turn, held));
        assert_eq!(places.take(&one).await.unwrap().run(|| 2).await.unwrap(), 2);
    }

    #[test]
    fn a_check_does_not_go_before_sandboxes_and_its_thread_does_again() {
        let seen = std::thread::spawn(|| {
            setpriority_process(None, -5).expect("this test needs root");
            let usual = UsualPriority::begin();
            let during = getpriority_process(None);
            drop(usual);
            (during, getpriority_process(None))
        });
        assert_eq!(seen.join().unwrap(), (Ok(0), Ok(-5)));
    }

    #[test]
    fn a3f3_a_check_keeps_no_thread_of_the_runtime_from_others() {
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.worker_threads(1).enable_all().build().unwrap();
        // With one thread, which the check has: what it waits for can only be done by another one.
        let done = runtime.block_on(runtime.spawn(async {
            let (said, heard) = std::sync::mpsc::channel();
            let beside = tokio::spawn(async move { said.send(()).unwrap() });
            let busy = tenant("busy");
            let wait = Duration::from_secs(20);
            let heard = check(&busy, move || heard.recv_timeout(wait)).await.unwrap();
            beside.await.unwrap();
            heard
        }));
        done.unwrap().unwrap();
    }
}
