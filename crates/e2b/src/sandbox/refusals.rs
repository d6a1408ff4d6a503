//! A sandbox that is not there, in E2B's words.

use axum::body::Body;
use axum::http::Response;
use cofferdam_contracts::error::ErrorCode;
use cofferdam_contracts::id::LiveId;
use cofferdam_flows::Error;
use cofferdam_live::{FindGuest, Guest};

use crate::answer;
use crate::call::Call;

pub(crate) fn missing(id: &str) -> Response<Body> {
    let id: String = id.chars().take(64).collect();
    answer::error(404, format!("sandbox {id:?} not found"))
}

/// The running sandbox of this name.
pub(crate) async fn running(call: &Call, id: &str) -> Result<Guest, Response<Body>> {
    let live = LiveId::parse(id).map_err(|_| missing(id))?;
    let guest = call.services.live.ask(FindGuest { who: call.who.clone(), id: live }).await;
    guest.map_err(|error| found(id, error))
}

/// A refusal that a sandbox is not there has E2B's words.
pub(crate) fn found(id: &str, error: Error) -> Response<Body> {
    match &error {
        Error::Refused(refusal) if refusal.code == ErrorCode::NotFound => missing(id),
        _ => answer::refused(error),
    }
}
