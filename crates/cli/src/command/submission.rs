//! A submission that takes long says why.

use std::pin::pin;
use std::time::Duration;

use cofferdam_ambient::clock;

use super::output;

/// After so long something is said.
const SLOW: Duration = Duration::from_secs(2);

/// Awaits a submission, and says why it takes long.
pub(crate) async fn told<T>(submitted: impl Future<Output = T>, is_quiet: bool) -> T {
    let mut submitted = pin!(submitted);
    tokio::select! {
        done = submitted.as_mut() => return done,
        () = clock::sleep(SLOW) => {}
    }
    if !is_quiet {
        output::note("the server is still taking the content of the run's directories");
    }
    submitted.await
}
