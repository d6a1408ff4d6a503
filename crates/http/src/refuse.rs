//! Responses of JSON, those of errors among them.

use axum::body::Body;
use axum::http::{HeaderValue, Response, StatusCode, header};
use cofferdam_ambient::own;
use cofferdam_contracts::error::{ErrorCode, Refusal};
use serde_json::Value;

/// An error's response.
#[must_use]
pub fn refuse(refusal: Refusal) -> Response<Body> {
    let status =
        StatusCode::from_u16(refusal.code.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let code = refusal.code;
    let message = own::hidden(&refusal.message).into_owned();
    let body = serde_json::to_value(Refusal { message, ..refusal }.body()).unwrap_or(Value::Null);
    let mut response = with_json(status, &body);
    if code == ErrorCode::Unauthorized {
        response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    if code == ErrorCode::Unavailable {
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    }
    response
}

/// A response of JSON.
#[must_use]
pub fn with_json(status: StatusCode, value: &Value) -> Response<Body> {
    let mut response = Response::new(Body::from(value.to_string()));
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
