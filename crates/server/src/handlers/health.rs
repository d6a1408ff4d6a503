//! `/healthz`.

use std::time::Duration;

use axum::http::StatusCode;
use serde_json::json;

use crate::answer::{Answered, json as answer};
use crate::call::Call;

/// A prober wants an answer, and a database that takes longer is not well.
const PATIENCE: Duration = Duration::from_secs(2);

pub(crate) async fn healthz(call: Call) -> Answered {
    let asked = tokio::time::timeout(PATIENCE, call.flows().ledger.executors_live());
    match asked.await {
        Ok(Ok(workers)) => {
            answer(StatusCode::OK, &json!({"ok": true, "db": true, "workers": workers}))
        }
        _ => answer(StatusCode::SERVICE_UNAVAILABLE, &json!({"ok": false, "db": false})),
    }
}
