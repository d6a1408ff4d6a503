//! Calls of envd: who asks, and in which sandbox.

use std::sync::Arc;

use axum::http::HeaderMap;
use cofferdam_live::Account;
use hyper::Request;
use hyper::body::Incoming;
use serde_json::Value;

use crate::connect::content_type::Codec;
use crate::connect::fault::Fault;
use crate::envd::state::Envd;

/// A call with one message.
pub(crate) struct Rpc {
    pub envd: Arc<Envd>,
    /// As whom it acts, or why that is nobody.
    pub account: Result<Account, Fault>,
    pub message: Value,
}

/// A call whose messages or answers are a stream.
pub(crate) struct StreamRpc {
    pub envd: Arc<Envd>,
    pub account: Result<Account, Fault>,
    pub headers: HeaderMap,
    pub codec: Codec,
    pub body: Incoming,
}

/// A transfer of a file.
pub(crate) struct FilesCall {
    pub envd: Arc<Envd>,
    pub account: Account,
    /// As its client names it.
    pub path: String,
    pub request: Request<Incoming>,
}
