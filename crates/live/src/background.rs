//! Work that goes on beside whoever asked for it.

use cofferdam_flows::Result;

use crate::refusal::stops;

/// Runs to its end, whatever becomes of who waits for it.
pub(crate) async fn detached<T: Send + 'static>(
    work: impl Future<Output = Result<T>> + Send + 'static,
) -> Result<T> {
    tokio::spawn(work).await.map_err(|_| stops())?
}

/// Work that waits for a disk.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> std::io::Result<T> + Send + 'static,
) -> std::io::Result<T> {
    tokio::task::spawn_blocking(work)
        .await
        .unwrap_or_else(|error| Err(std::io::Error::other(error)))
}
