//! `/healthz`.

use std::time::Duration;

use axum::http::StatusCode;
use cofferdam_contracts::health::{Health, QueueBacklog};
use cofferdam_ledger::engine::Backlog;

use crate::answer::{Answered, json as answer};
use crate::call::Call;

/// A prober wants an answer, and a database that takes longer is not well.
const PATIENCE: Duration = Duration::from_secs(2);

pub(crate) async fn healthz(call: Call) -> Answered {
    let ledger = &call.flows().ledger;
    let asked = async {
        tokio::try_join!(
            ledger.executors().heard(),
            ledger.sessions().held(),
            ledger.queues().backlogs()
        )
    };
    match tokio::time::timeout(PATIENCE, asked).await {
        // A held session is an operator's task and no reason to take this server out of service. Where no
        // worker beats, nothing that is asked for here is done.
        Ok(Ok((workers, held, backlogs))) => {
            let is_well = workers > 0;
            let status = if is_well { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
            let queue =
                |b: Backlog| QueueBacklog { name: b.queue, depth: b.depth, oldest_ms: b.oldest_ms };
            let queues = Some(backlogs.into_iter().map(queue).collect());
            let (workers, held_sessions) = (Some(workers), Some(held));
            answer(status, &Health { ok: is_well, db: true, workers, held_sessions, queues })
        }
        _ => {
            let (workers, held_sessions, queues) = (None, None, None);
            let health = Health { ok: false, db: false, workers, held_sessions, queues };
            answer(StatusCode::SERVICE_UNAVAILABLE, &health)
        }
    }
}
