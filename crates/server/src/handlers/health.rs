//! The handler of `/healthz`: database, workers, queues.

use std::time::Duration;

use axum::http::StatusCode;
use cofferdam_contracts::health::{Health, QueueBacklog};
use cofferdam_ledger::health::{Backlog, FleetHealth};

use crate::answer::{AnswerResult, json as answer};
use crate::call::Call;

/// A prober wants an answer, and a database that takes longer is not well.
pub(crate) const PATIENCE: Duration = Duration::from_secs(2);

/// Where it is not the first request of its connection, or one within TLS: others are answered by `health_listener`.
pub(crate) async fn healthz(call: Call) -> AnswerResult {
    let asked = tokio::time::timeout(PATIENCE, call.flows().ledger.fleet_health());
    health(asked.await.ok().and_then(Result::ok))
}

/// What is said of them; `None`: the database did not tell.
pub(crate) fn health(health: Option<FleetHealth>) -> AnswerResult {
    let Some(FleetHealth { workers, held, queues }) = health else {
        let (workers, held_sessions, queues) = (None, None, None);
        let health = Health { ok: false, db: false, workers, held_sessions, queues };
        return answer(StatusCode::SERVICE_UNAVAILABLE, &health);
    };
    // A held session is an operator's task and no reason to take this server out of service. Where no
    // worker beats, nothing that is asked for here is done.
    let is_well = workers > 0;
    let status = if is_well { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let queue = |b: Backlog| QueueBacklog { name: b.queue, depth: b.depth, oldest_ms: b.oldest_ms };
    let queues = Some(queues.into_iter().map(queue).collect());
    let (workers, held_sessions) = (Some(workers), Some(held));
    answer(status, &Health { ok: is_well, db: true, workers, held_sessions, queues })
}
