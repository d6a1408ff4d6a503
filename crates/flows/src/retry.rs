//! `POST /api/runs/:id/retry`: a failed run goes on from its first step without success, as itself.

use std::time::Duration;

use cofferdam_ambient::clock::{self, Stopwatch};
use cofferdam_contracts::error::{ErrorCode, Refusal};
use cofferdam_contracts::run::{RetryResponse, RunStatus};
use cofferdam_ledger::audit::Audit;
use cofferdam_ledger::keys::Principal;
use cofferdam_ledger::retries::RetryOutcome;

use crate::error::Result;
use crate::runs::Runs;

/// A run's row says that it failed a moment before its workflow has ended, and a lost worker's workflow
/// ends with the next worker: above the time in which that takes it over, below that of a request.
const ENGINE_ENDS: Duration = Duration::from_secs(8);
/// Between looks whether it has ended.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

impl Runs {
    /// Goes on with a failed run: what succeeded keeps its results, what was decided stays decided.
    pub async fn retry(&self, who: &Principal, run_or_workflow: &str) -> Result<RetryResponse> {
        let header = self
            .ledger
            .runs()
            .header(&who.tenant, run_or_workflow)
            .await?
            .ok_or_else(|| Refusal::not_found("run"))?;
        let audit =
            Audit { reason: "retry", ..Audit::by(who, "retry", header.workflow_id.as_str()) };
        let waited = Stopwatch::start();
        let from_step = loop {
            match self.ledger.runs().retry(&header.run_id, &audit).await? {
                RetryOutcome::From(step) => break step,
                RetryOutcome::NotNow(status) => return Err(not_now(status).into()),
                RetryOutcome::Dispatch => {
                    let why = "a dispatch is sent off again by its own retry, not as a run";
                    return Err(Refusal::new(ErrorCode::StateConflict, why).into());
                }
                RetryOutcome::Unserved(version) => {
                    let why = format!(
                        "the run's steps are recorded by version {version}, which no live worker has: start it \
                         anew (cofferdam fork RUN --step 0)"
                    );
                    return Err(Refusal::new(ErrorCode::StateConflict, why).into());
                }
                RetryOutcome::NotYet if waited.elapsed() > ENGINE_ENDS => {
                    let why =
                        "the run failed, but its workflow has not ended yet; try again in a moment";
                    return Err(Refusal::new(ErrorCode::StateConflict, why).into());
                }
                RetryOutcome::NotYet => clock::sleep(LOOK_AGAIN).await,
            }
        };
        Ok(RetryResponse {
            accepted: true,
            new_run_id: header.run_id,
            workflow_id: header.workflow_id,
            from_step,
        })
    }
}

fn not_now(status: RunStatus) -> Refusal {
    let why = format!("a run that is {} cannot be retried", status.as_str());
    Refusal::new(ErrorCode::StateConflict, why)
}
