//! Our own API: routes from the table, and the checks that every request passes.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use axum::Router;
use axum::body::Body;
use axum::body::HttpBody;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request};
use axum::http::{HeaderMap, Method, Response, Uri, header};
use axum::routing::{MethodFilter, MethodRouter, on};
use cofferdam_contracts::error::{ErrorCode, Refusal, Violation};
use cofferdam_contracts::schema::{Validator, parse_json, unstorable};
use cofferdam_contracts::trigger::MAX_DELIVERY_BYTES;
use cofferdam_flows::keys::{anybody, keyless_caller};
use cofferdam_flows::triggers::{DELIVERY_HEADERS, DeliveryHeaders};
use cofferdam_flows::{Error, Flows};
use cofferdam_http::{ANSWER_PATIENCE, Api, BODY_PATIENCE, Reply, Site, is_json, refuse};
use cofferdam_ledger::keys::Principal;
use cofferdam_live::LiveClient;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::service::Service as _;
use hyper_util::service::TowerToHyperService;
use serde_json::Value;

use crate::MAX_BODY_BYTES;
use crate::answer::respond;
use crate::call::{Call, HandlerContext, query_of};
use crate::route::Route;
use crate::routes::ROUTES;

/// Type of a body that is bytes of any kind.
const BYTES: &str = "application/octet-stream";

/// A body that is too large is read and dropped up to here: closing on a client that still sends
/// would reset its connection before it has read why.
const DRAINED_BYTES: usize = 16 * MAX_BODY_BYTES;

/// Every route of the table. It claims whatever it is asked, so it is asked last.
#[derive(Debug)]
pub struct RouterApi(TowerToHyperService<Router>);

impl RouterApi {
    /// With what it serves, at this address.
    #[must_use]
    pub fn new(flows: Flows, live: LiveClient, site: Site) -> Self {
        let Site { no_auth, links: public_url, .. } = site;
        let shared = Arc::new(HandlerContext { flows, live, no_auth, public_url });
        Self(TowerToHyperService::new(router(&shared)))
    }
}

impl Api for RouterApi {
    fn has_label(&self, _label: &str) -> bool {
        false
    }

    fn claims(&self, _uri: &Uri, _headers: &HeaderMap) -> bool {
        true
    }

    fn answer(self: Arc<Self>, request: hyper::Request<Incoming>) -> Reply<'static> {
        Box::pin(async move {
            let Ok(response) = self.0.call(request).await;
            response
        })
    }
}

type Params = BTreeMap<String, String>;

/// A route with its schema, which is compiled for the first body that comes: compiled, those of all
/// routes are a quarter of what an idle server holds.
struct Endpoint {
    route: &'static Route,
    schema: OnceLock<Option<Validator>>,
    shared: Arc<HandlerContext>,
}

fn router(shared: &Arc<HandlerContext>) -> Router {
    let mut methods: BTreeMap<&'static str, MethodRouter> = BTreeMap::new();
    for route in ROUTES {
        let (schema, shared) = (OnceLock::new(), Arc::clone(shared));
        let endpoint = Arc::new(Endpoint { route, schema, shared });
        let filter = match route.method {
            "POST" => MethodFilter::POST,
            "DELETE" => MethodFilter::DELETE,
            "PUT" => MethodFilter::PUT,
            _ => MethodFilter::GET,
        };
        let handler = move |params: Result<Path<Params>, PathRejection>, request: Request| {
            let endpoint = Arc::clone(&endpoint);
            async move {
                match params {
                    Ok(Path(params)) => endpoint.answer(params, request).await,
                    Err(_) => refuse(Refusal::new(ErrorCode::InvalidId, "the URL is not UTF-8")),
                }
            }
        };
        let entry = methods.remove(route.path).unwrap_or_else(|| {
            MethodRouter::new().fallback(|method: Method| async move {
                refuse(Refusal::new(
                    ErrorCode::MethodNotAllowed,
                    format!("{method} is not allowed here; `cofferdam openapi` lists the methods of every path"),
                ))
            })
        });
        methods.insert(route.path, entry.merge(on(filter, handler)));
    }
    methods
        .into_iter()
        .fold(Router::new(), |router, (path, methods)| router.route(path, methods))
        .fallback(|| async { refuse(Refusal::not_found("route")) })
}

impl Endpoint {
    async fn answer(&self, params: Params, request: Request) -> Response<Body> {
        let answered = async {
            match self.call(params, request).await {
                Ok(call) => respond(self.route.within((self.route.handler)(call)).await),
                Err(error) => respond(Err(error)),
            }
        };
        tokio::time::timeout(ANSWER_PATIENCE, answered).await.unwrap_or_else(|_| {
            let waited = ANSWER_PATIENCE.as_secs();
            refuse(Refusal::new(
                ErrorCode::Unavailable,
                format!("no answer within {waited} s; send the request again"),
            ))
        })
    }

    /// Type of the body, key, role, query, body, JSON, schema: in this order, and before any of the
    /// route's own work.
    async fn call(&self, params: Params, request: Request) -> Result<Call, Error> {
        let (parts, body) = request.into_parts();
        self.has_type(&parts.headers, &body)?;
        let text = |name: header::HeaderName| parts.headers.get(name).and_then(|v| v.to_str().ok());
        let who = self.route.within(self.principal(text(header::AUTHORIZATION))).await?;
        if !self.route.roles.is_empty() && !self.route.roles.iter().any(|role| who.has(*role)) {
            let roles: Vec<&str> = self.route.roles.iter().map(|r| r.as_str()).collect();
            return Err(Refusal::new(
                ErrorCode::Forbidden,
                format!("this needs the role {}", roles.join(" or ")),
            )
            .into());
        }
        if params.values().any(|v| v.chars().any(char::is_control)) {
            return Err(Refusal::new(ErrorCode::InvalidId, "the URL has control characters").into());
        }
        let query = query_of(self.route.query, parts.uri.query())?;
        let (body, bytes) = match (self.route.bytes_bound(), self.route.takes_delivery()) {
            (Some(bound), _) => (Value::Null, arrived(body, bound).await?),
            (_, true) => (Value::Null, arrived(body, MAX_DELIVERY_BYTES).await?),
            _ => (self.body(body).await?, Vec::new()),
        };
        Ok(Call {
            shared: Arc::clone(&self.shared),
            who,
            params,
            query,
            body,
            bytes,
            delivery: match self.route.takes_delivery() {
                true => delivery(&parts.headers),
                false => DeliveryHeaders::new(),
            },
            if_none_match: text(header::IF_NONE_MATCH).map(str::to_owned),
            range: text(header::RANGE).map(str::to_owned),
            if_range: text(header::IF_RANGE).map(str::to_owned),
            wants_events: text(header::ACCEPT).is_some_and(|a| a.contains("text/event-stream")),
            wants_page: text(header::ACCEPT).is_some_and(|a| a.contains("text/html")),
        })
    }

    fn has_type(&self, headers: &HeaderMap, body: &Body) -> Result<(), Refusal> {
        match self.route.bytes_bound() {
            Some(_) => has_bytes(headers, body),
            None => has_json(headers, body),
        }
    }

    async fn principal(&self, authorization: Option<&str>) -> Result<Principal, Error> {
        // A link is its own key, and health is everybody's: nobody in particular asks.
        if self.route.roles.is_empty() {
            return Ok(anybody()?);
        }
        if self.shared.no_auth && authorization.is_none() {
            return Ok(keyless_caller()?);
        }
        let unauthorized = || {
            Refusal::new(
                ErrorCode::Unauthorized,
                "a valid API key is needed: Authorization: Bearer <key>",
            )
        };
        let secret = authorization
            .and_then(|value| {
                value.strip_prefix("Bearer ").or_else(|| value.strip_prefix("bearer "))
            })
            .ok_or_else(unauthorized)?;
        Ok(self
            .shared
            .flows
            .ledger
            .keys()
            .principal(secret.trim())
            .await?
            .ok_or_else(unauthorized)?)
    }

    fn schema(&self) -> Option<&Validator> {
        // The table's own schemas compile; a test holds that, so an uncompilable one is only unchecked here.
        let compiled = || self.route.request.and_then(|schema| Validator::compile(&schema()).ok());
        self.schema.get_or_init(compiled).as_ref()
    }

    async fn body(&self, body: Body) -> Result<Value, Refusal> {
        let Some(schema) = self.schema() else { return Ok(Value::Null) };
        let bytes = arrived(body, MAX_BODY_BYTES).await?;
        let value = parse_json(&bytes)?;
        if let Some(why) = unstorable(&value) {
            return Err(Refusal::violations(&[Violation {
                instance_path: String::new(),
                message: why.into(),
            }]));
        }
        schema.check(&value)?;
        Ok(value)
    }
}

/// What a hook reads of a delivery's headers.
fn delivery(headers: &HeaderMap) -> DeliveryHeaders {
    let value = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    DELIVERY_HEADERS.into_iter().filter_map(|name| Some((name, value(name)?.to_owned()))).collect()
}

/// The bytes of a body, at most so many.
async fn arrived(body: Body, limit: usize) -> Result<Vec<u8>, Refusal> {
    let arrived = tokio::time::timeout(BODY_PATIENCE, gather(body, limit)).await;
    let bytes = arrived.map_err(|_| {
        let waited = BODY_PATIENCE.as_secs();
        let message = format!("the body did not arrive within {waited} s");
        Refusal::new(ErrorCode::RequestTimeout, message)
    })??;
    bytes.ok_or_else(|| {
        Refusal::new(ErrorCode::BodyTooLarge, format!("a body is at most {limit} bytes"))
            .with(serde_json::json!({"limit": limit}))
    })
}

/// The bytes of a body; `None` where it is too large, which is told after it was read, up to a bound.
async fn gather(mut body: Body, limit: usize) -> Result<Option<Vec<u8>>, Refusal> {
    let mut bytes = Vec::new();
    let mut size = 0;
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| {
            Refusal::new(ErrorCode::InvalidJson, "the body ended early; send the request again")
        })?;
        let Ok(data) = frame.into_data() else { continue };
        size += data.len();
        if size <= limit {
            bytes.extend_from_slice(&data);
        } else if size > DRAINED_BYTES {
            break;
        }
    }
    Ok((size <= limit).then_some(bytes))
}

/// What pages of other origins can send unasked has other types.
fn has_bytes(headers: &HeaderMap, body: &Body) -> Result<(), Refusal> {
    let said = headers.get(header::CONTENT_TYPE).and_then(|said| said.to_str().ok());
    if body.is_end_stream() || said.is_some_and(|said| said.eq_ignore_ascii_case(BYTES)) {
        return Ok(());
    }
    let why = format!("the body is bytes: send Content-Type: {BYTES}");
    Err(Refusal::new(ErrorCode::UnsupportedMediaType, why))
}

/// Only JSON is read, on every other route: what pages of other origins can send unasked is not JSON.
fn has_json(headers: &HeaderMap, body: &Body) -> Result<(), Refusal> {
    if body.is_end_stream() || is_json(headers) {
        return Ok(());
    }
    Err(Refusal::new(
        ErrorCode::UnsupportedMediaType,
        "a body is JSON: send Content-Type: application/json",
    ))
}
