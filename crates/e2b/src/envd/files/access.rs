//! `/files` of envd: who may, and what came of it.

use std::sync::Arc;

use axum::body::Body;
use axum::http::{Method, Response};
use hyper::Request;
use hyper::body::Incoming;

use crate::answer;
use crate::connect::fault::Fault;
use crate::envd::call::FilesCall;
use crate::envd::files::signature::{FileQuery, asked, is_claimed, is_signed};
use crate::envd::state::Envd;
use crate::route::Endpoint;

/// A fault of these routes alone: a sandbox has as many transfers as it can.
pub(crate) const BUSY: &str = "busy";

/// `GET` and `POST /files`.
pub(crate) async fn answer(
    envd: &Arc<Envd>,
    endpoint: Option<&Endpoint>,
    request: Request<Incoming>,
) -> Response<Body> {
    let Some(Endpoint::Files(handler)) = endpoint else {
        return answer::error(405, "/files takes GET and POST");
    };
    let operation = if *request.method() == Method::GET { "read" } else { "write" };
    let has_token = envd.opens(request.headers());
    if !has_token {
        match is_signed(request.uri(), operation, &envd.guest.facts.token) {
            Ok(true) if !envd.guest.is_revoked() => {}
            Ok(_) if is_claimed(request.uri()) => return answer::error(401, "invalid signature"),
            Ok(_) => return answer::error(401, "an access token or a signature is needed"),
            Err(why) => return answer::error(401, why),
        }
    }
    let FileQuery { path, user } = asked(request.uri());
    // A signature is for the user that it names, or for the default one.
    let who = match user.is_some() || !has_token {
        true => envd.account(user.as_deref()),
        false => envd.acting(request.headers()),
    };
    let account = match who {
        Ok(account) => account,
        Err(fault) => return answer::error(401, fault.message),
    };
    let call = FilesCall { envd: Arc::clone(envd), account, path, request };
    handler(call).await.unwrap_or_else(|fault| refused(&fault))
}

/// A fault in the form of these routes, which is not Connect's.
fn refused(fault: &Fault) -> Response<Body> {
    let status = match fault.code {
        "invalid_argument" => 400,
        "not_found" => 404,
        "unavailable" => 502,
        BUSY => 429,
        "resource_exhausted" => 507,
        "out_of_range" => 413,
        "deadline_exceeded" => 408,
        _ => 500,
    };
    answer::error(status, fault.message.clone())
}
