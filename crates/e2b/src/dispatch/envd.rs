//! Port 49983 of a sandbox, as envd has it: the checks of a request, in their order.

use std::sync::Arc;

use axum::body::Body;
use axum::http::{Method, Response};
use hyper::Request;
use hyper::body::Incoming;
use serde_json::Value;

use crate::answer;
use crate::connect::content_type::{self, Codec, ContentType, Form};
use crate::connect::fault::Fault;
use crate::connect::{message, reply};
use crate::envd::call::{Rpc, StreamRpc};
use crate::envd::files::access;
use crate::envd::process::command_notes;
use crate::envd::state::Envd;
use crate::find::{RouteMatch, find, first};
use crate::route::{Access, Endpoint, Route, Surface};
use crate::routes::{FILESYSTEM, NO_ENVD_ROUTE, PROCESS, ROUTES};

/// Answers one request.
pub(crate) async fn answer(envd: &Arc<Envd>, request: Request<Incoming>) -> Response<Body> {
    let path = request.uri().path().to_owned();
    let route = find(Surface::Envd, request.method(), &path).map(|RouteMatch { route, .. }| route);
    if route.is_some_and(|route| route.access == Access::Open) {
        return answer::empty(204);
    }
    let endpoint = route.map(|route| &route.endpoint);
    if is_files(&path) {
        return access::answer(envd, endpoint, request).await;
    }
    if !envd.opens(request.headers()) {
        return answer::error(401, "the access token of this sandbox is needed: X-Access-Token");
    }
    if let Some(service) = [PROCESS, FILESYSTEM].into_iter().find(|name| *name == first(&path))
        && path.len() > service.len() + 1
    {
        return called(envd, service, endpoint, request).await;
    }
    match endpoint {
        Some(Endpoint::Told(handler)) => {
            let rpc =
                Rpc { envd: Arc::clone(envd), account: envd.account(None), message: Value::Null };
            match handler(rpc).await {
                Ok(value) => answer::json(200, &value),
                Err(fault) => fault.response(),
            }
        }
        Some(Endpoint::Absent(status, why)) => answer::error(*status, *why),
        _ => answer::error(404, NO_ENVD_ROUTE),
    }
}

/// Whether a path is that of files, by any method.
fn is_files(path: &str) -> bool {
    let files = |route: &&Route| route.access == Access::TokenOrSignature;
    ROUTES.iter().filter(files).any(|route| route.path == path)
}

/// A call of a service, whose endpoint is that of its path.
async fn called(
    envd: &Arc<Envd>,
    service: &'static str,
    endpoint: Option<&Endpoint>,
    request: Request<Incoming>,
) -> Response<Body> {
    if *request.method() != Method::POST {
        return answer::error(405, "calls of envd are POST requests");
    }
    let (parts, body) = request.into_parts();
    let path = parts.uri.path();
    let endpoint = endpoint.filter(|endpoint| endpoint.codec().is_some());
    let spoken = content_type::spoken(&parts.headers, endpoint.and_then(Endpoint::codec));
    let ContentType { form, codec } = match spoken {
        Ok(spoken) => spoken,
        Err(response) => return *response,
    };
    let account = envd.acting(&parts.headers);
    if service == PROCESS {
        command_notes::adopt(envd).await;
    } else if let Err(fault) = &account {
        return failed(fault, form, codec);
    }
    let envd = Arc::clone(envd);
    match (form, endpoint) {
        (Form::Stream, Some(Endpoint::Stream { handler, .. })) => {
            handler(StreamRpc { envd, account, headers: parts.headers, codec, body }).await
        }
        (Form::Unary, endpoint) => {
            let replied = match (message::message(body, codec).await, endpoint) {
                (Ok(message), Some(Endpoint::Unary { handler, .. })) => {
                    handler(Rpc { envd, account, message }).await
                }
                (Ok(_), _) => Err(unknown(service, path)),
                (Err(fault), _) => Err(fault),
            };
            reply::unary(replied, codec)
        }
        (Form::Stream, _) => reply::failed(&unknown(service, path), codec),
    }
}

fn failed(fault: &Fault, form: Form, codec: Codec) -> Response<Body> {
    match form {
        Form::Stream => reply::failed(fault, codec),
        Form::Unary => fault.response(),
    }
}

fn unknown(service: &str, path: &str) -> Fault {
    let method = path.get(service.len().saturating_add(2)..).unwrap_or_default();
    let method: String = method.chars().take(64).collect();
    Fault::new("unimplemented", format!("{service} has no method {method} of this form"))
}
