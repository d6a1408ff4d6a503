//! `process.Process/Connect`: follows a command that runs already.

use axum::body::Body;
use axum::http::Response;

use crate::connect::message::{self, Messages};
use crate::connect::reply;
use crate::envd::call::StreamRpc;
use crate::envd::process::select::SelectRequest;
use crate::envd::state::processes::found;

/// Follows a command that was started before.
pub(crate) async fn connect(call: StreamRpc) -> Response<Body> {
    let StreamRpc { envd, headers, codec, body, .. } = call;
    let wanted = Messages::first(body, codec).await.and_then(message::parse::<SelectRequest>);
    match wanted.and_then(|wanted| found(&envd, &wanted.process)) {
        Ok(process) => process.follow().told(&headers, codec),
        Err(fault) => reply::failed(&fault, codec),
    }
}
