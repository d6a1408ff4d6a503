//! Runs that OpenCode plans and builds: the driver of its daemon, which a worker of `flows` asks for by a trait.
//!
//! ```text
//! CompileST     draft -> task `plan` (driver in a sandbox) -> AgentPlan -> the plan that the gate shows
//! ExecuteST     task `build` (driver in another sandbox, same conversation) -> patch
//! ApplyPatchST  the patch on record, file by file          DecideST  the tests of the approved plan
//! ExecuteST     tests, each in a sandbox of its own, on the patched project
//! ```
//! **The daemon's state is a copy of the ledger's**: no sandbox has to survive. A daemon that is new, because its worker,
//! its sandbox or itself was lost, is driven through the same prompts with the same ids, and what the provider answered
//! is read from the record (`flows`, `models::prompt_position`), so that nothing that was answered is asked again.
//!
//! # Floors
//! A line imports only from those below it; what imports each other in a circle stands on one line.
//! ```text
//! driver
//! next turn
//! ```

mod driver;
mod next;
mod turn;

use cofferdam_flows::{BoxFuture, DriverJob, PlannerDriver, PlannerDrivers};
use cofferdam_ledger::Ledger;

use crate::driver::OpencodeDriver;

/// The version of OpenCode's daemon that plans are made by; another one is refused.
pub const OPENCODE: &str = cofferdam_opencode::VERSION;

/// Plans and builds by OpenCode, with every prompt on record in one ledger.
#[derive(Debug, Clone)]
pub struct Planner {
    ledger: Ledger,
}

impl Planner {
    /// With the ledger of the tasks that it is given.
    #[must_use]
    pub fn new(ledger: &Ledger) -> Self {
        Self { ledger: ledger.clone() }
    }
}

impl PlannerDrivers for Planner {
    fn begin<'a>(&'a self, job: DriverJob<'a>) -> BoxFuture<'a, Box<dyn PlannerDriver>> {
        Box::pin(async move {
            let driver: Box<dyn PlannerDriver> =
                Box::new(OpencodeDriver::begin(&self.ledger, job).await);
            driver
        })
    }
}
