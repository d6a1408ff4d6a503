//! `/healthz`.

use std::time::Duration;

use axum::http::StatusCode;
use serde_json::json;

use crate::answer::{Answered, json as answer};
use crate::call::Call;

/// A prober wants an answer, and a database that takes longer is not well.
const PATIENCE: Duration = Duration::from_secs(2);

pub(crate) async fn healthz(call: Call) -> Answered {
    let ledger = &call.flows().ledger;
    let asked = async { tokio::try_join!(ledger.executors_live(), ledger.sessions_held()) };
    match tokio::time::timeout(PATIENCE, asked).await {
        // A held session is an operator's task and no reason to take this server out of service.
        Ok(Ok((workers, held))) => answer(
            StatusCode::OK,
            &json!({"ok": true, "db": true, "workers": workers, "heldSessions": held}),
        ),
        _ => answer(StatusCode::SERVICE_UNAVAILABLE, &json!({"ok": false, "db": false})),
    }
}
