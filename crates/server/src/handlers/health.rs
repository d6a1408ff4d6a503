//! `/healthz`.

use axum::http::StatusCode;
use serde_json::json;

use crate::answer::{Answered, json as answer};
use crate::call::Call;

pub(crate) async fn healthz(call: Call) -> Answered {
    let workers = call.flows().ledger.executors_live().await;
    match workers {
        Ok(workers) => answer(StatusCode::OK, &json!({"ok": true, "db": true, "workers": workers})),
        Err(_) => answer(StatusCode::SERVICE_UNAVAILABLE, &json!({"ok": false, "db": false})),
    }
}
