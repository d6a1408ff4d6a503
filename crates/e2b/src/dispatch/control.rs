//! E2B's control plane: the checks of a request, in their order.

use std::sync::Arc;

use axum::body::Body;
use axum::http::Response;
use cofferdam_http::{ANSWER_PATIENCE, is_json};
use hyper::Request;
use hyper::body::{Body as _, Incoming};

use crate::answer;
use crate::call::{Call, Outcome};
use crate::caller::{caller, may};
use crate::domain::domain;
use crate::find::{RouteMatch, find};
use crate::route::{Endpoint, Surface};
use crate::routes::NO_ROUTE;
use crate::services::Services;
use crate::template::upload::UploadCall;

/// Answers one request.
pub(crate) async fn answer(services: &Arc<Services>, request: Request<Incoming>) -> Response<Body> {
    let (parts, body) = request.into_parts();
    let query = parts.uri.query().unwrap_or("").to_owned();
    let Some(RouteMatch { route, params }) =
        find(Surface::Control, &parts.method, parts.uri.path())
    else {
        return answer::error(404, NO_ROUTE);
    };
    let services = Arc::clone(services);
    match &route.endpoint {
        Endpoint::Empty => return answer::empty(204),
        Endpoint::Upload(handler) => {
            return handler(UploadCall { services, params, query, body }).await;
        }
        _ => {}
    }
    let who = match caller(&services, &parts.headers).await {
        Ok(who) => who,
        Err(response) => return response,
    };
    let writes = route.access.writes(&parts.method);
    if !may(&who, writes) {
        let role = if writes { "submitter" } else { "submitter, approver, operator or auditor" };
        return answer::error(403, format!("this needs a key with the role {role}"));
    }
    if !body.is_end_stream() && !is_json(&parts.headers) {
        return answer::error(415, "a body is JSON: send Content-Type: application/json");
    }
    let domain = domain(&parts.headers, &services.site.names);
    let call = Call { services, who, domain, headers: parts.headers, query, params, body };
    let answered = tokio::time::timeout(ANSWER_PATIENCE, answered(&route.endpoint, call)).await;
    match answered {
        Ok(answered) => answered.unwrap_or_else(|refused| refused),
        Err(_) => {
            let waited = ANSWER_PATIENCE.as_secs();
            answer::error(503, format!("no answer within {waited} s; send the request again"))
        }
    }
}

async fn answered(endpoint: &Endpoint, call: Call) -> Outcome {
    match endpoint {
        Endpoint::Control(handler) => handler(call).await,
        // What is not there says so, and never hangs.
        Endpoint::Absent(status, why) => Err(answer::error(*status, *why)),
        _ => Err(answer::error(404, NO_ROUTE)),
    }
}
