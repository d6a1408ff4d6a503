//! The time in which the sandbox's files are those of one moment: see [`cofferdam_guest::layer_stream`].
//!
//! The task is stopped by the kernel then. What the agent itself would do to a file, or start, waits here.

use std::sync::LazyLock;

use tokio::sync::watch;

/// Whether it is that time. Of one sandbox, so of one process.
static STILL: LazyLock<watch::Sender<bool>> = LazyLock::new(watch::Sender::default);

/// Ends that time when it is dropped.
#[derive(Debug)]
pub struct FreezeGuard(());

/// Begins it, once the time of whoever had it before is over.
pub async fn freeze() -> FreezeGuard {
    while !STILL.send_if_modified(|still| !std::mem::replace(still, true)) {
        over().await;
    }
    FreezeGuard(())
}

/// Waits until it is over.
pub async fn over() {
    // An error would mean that there is no sender, which is ours.
    let _ = STILL.subscribe().wait_for(|still| !*still).await;
}

impl Drop for FreezeGuard {
    fn drop(&mut self) {
        STILL.send_replace(false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::clock::within_ms;

    #[tokio::test]
    async fn what_comes_meanwhile_waits_and_so_does_who_would_begin_it_twice() {
        over().await;
        let still = freeze().await;
        assert!(within_ms(20, freeze()).await.is_none());
        assert!(within_ms(20, over()).await.is_none());
        drop(still);
        over().await;
        drop(freeze().await);
    }
}
