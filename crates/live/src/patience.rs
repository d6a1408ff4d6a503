//! How long callers wait, and for what.

use std::time::Duration;

use cofferdam_ambient::clock;
use cofferdam_contracts::id::RunId;
use cofferdam_ledger::listen::{Wake, notified};
use tokio::sync::broadcast::Receiver;

/// How long a creation may wait for room and for its start; below the patience of clients, which is 60 s.
pub const CREATE_PATIENCE: Duration = Duration::from_secs(50);
/// How long a kill may take: the bound of a wipe, and of its commit.
pub(crate) const KILL_PATIENCE: Duration = Duration::from_secs(20);
/// A waiting caller looks at the row this often, should a notification be lost.
pub(crate) const LOOK: Duration = Duration::from_secs(1);
/// What nobody waits for begins so much later: whoever was just answered has the processors.
pub(crate) const REST: Duration = Duration::from_millis(100);

/// Until something of this run ended, or it is time to look.
pub(crate) async fn moved(wakes: &mut Receiver<Wake>, run: &RunId) {
    let ours = |wake: &Wake| matches!(wake, Wake::Task(r) | Wake::Run(r) if r == run.as_str());
    tokio::select! {
        () = notified(wakes, ours) => {}
        () = clock::sleep(LOOK) => {}
    }
}
