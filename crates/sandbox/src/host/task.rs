//! Work beside an asynchronous runtime: blocking work from one, a question from outside one, and a task that
//! ends with its owner.

use std::io;
use std::thread;

use tokio::task::JoinHandle;

/// Runs blocking work beside the runtime's threads.
pub(crate) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // Cancelled with the runtime, which ends us at this very await.
            Err(_) => std::future::pending().await,
        },
    }
}

/// Asks from where there is no asynchronous runtime, or one that must not be waited in.
pub(crate) fn ask<T: Send>(question: impl Future<Output = T> + Send) -> io::Result<T> {
    thread::scope(|scope| {
        let asking = scope.spawn(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            Ok(runtime.block_on(question))
        });
        match asking.join() {
            Ok(answer) => answer,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

/// What is aborted when its owner is dropped.
#[derive(Debug)]
pub(crate) struct Driver(pub JoinHandle<()>);

impl Drop for Driver {
    fn drop(&mut self) {
        self.0.abort();
    }
}
