//! `/healthz`.

use std::time::Duration;

use axum::http::StatusCode;
use cofferdam_ledger::engine::Backlog;
use serde_json::{Value, json};

use crate::answer::{Answered, json as answer};
use crate::call::Call;

/// A prober wants an answer, and a database that takes longer is not well.
const PATIENCE: Duration = Duration::from_secs(2);

pub(crate) async fn healthz(call: Call) -> Answered {
    let ledger = &call.flows().ledger;
    let asked = async {
        tokio::try_join!(ledger.executors_heard(), ledger.sessions_held(), ledger.backlogs())
    };
    match tokio::time::timeout(PATIENCE, asked).await {
        // A held session is an operator's task and no reason to take this server out of service. Where no
        // worker beats, nothing that is asked for here is done.
        Ok(Ok((workers, held, backlogs))) => {
            let is_well = workers > 0;
            let status = if is_well { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
            let queue =
                |b: &Backlog| json!({"name": b.queue, "depth": b.depth, "oldestMs": b.oldest_ms});
            let queues: Vec<Value> = backlogs.iter().map(queue).collect();
            answer(
                status,
                &json!({"ok": is_well, "db": true, "workers": workers, "heldSessions": held, "queues": queues}),
            )
        }
        _ => answer(StatusCode::SERVICE_UNAVAILABLE, &json!({"ok": false, "db": false})),
    }
}
