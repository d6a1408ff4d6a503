//! Time that a request spends reading directories of the host, which its patience does not count.
//!
//! A caller is told soon that the database is away; a directory of some gigabytes takes as long as it takes.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

tokio::task_local! {
    /// Begins and ends of readings of this request: odd while one goes on.
    static READS: Arc<AtomicU64>;
}

/// Awaits work for so long; `None`: it took longer. Work that read a directory in that time, or reads one, has it once more.
pub async fn within<T>(patience: Duration, work: impl Future<Output = T>) -> Option<T> {
    let (reads, mut seen) = (Arc::new(AtomicU64::new(0)), 0);
    let mut work = pin!(READS.scope(Arc::clone(&reads), work));
    loop {
        if let Ok(done) = tokio::time::timeout(patience, work.as_mut()).await {
            return Some(done);
        }
        let now = reads.load(Ordering::Relaxed);
        if now == seen && now.is_multiple_of(2) {
            return None;
        }
        seen = now;
    }
}

/// Work that reads a directory. Of a worker's own nobody waits.
pub(crate) async fn read<T>(work: impl Future<Output = T>) -> T {
    let count = || {
        let _ = READS.try_with(|reads| reads.fetch_add(1, Ordering::Relaxed));
    };
    count();
    let done = work.await;
    count();
    done
}

#[cfg(test)]
mod tests {
    use cofferdam_ambient::clock::sleep;

    use super::*;

    #[tokio::test]
    async fn a_directory_takes_as_long_as_it_takes_and_a_silent_database_ends_a_request() {
        let patience = Duration::from_millis(50);
        let silent = std::future::pending::<()>;
        assert!(within(patience, silent()).await.is_none());
        assert!(within(patience, read(sleep(patience * 5))).await.is_some());
        let then_silent = async {
            read(sleep(patience * 5)).await;
            silent().await;
        };
        assert!(within(patience, then_silent).await.is_none());
    }
}
