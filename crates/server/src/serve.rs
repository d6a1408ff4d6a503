//! The listener: routes from the table, the checks that every request passes, and a graceful end.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};

use axum::Router;
use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request};
use axum::http::{Method, Response, header};
use axum::routing::{MethodFilter, MethodRouter, on};
use cofferdam_contracts::error::{ErrorCode, Refusal, Violation};
use cofferdam_contracts::id::TenantId;
use cofferdam_contracts::key::Role;
use cofferdam_contracts::schema::{Validator, parse_json, unstorable};
use cofferdam_flows::Flows;
use cofferdam_flows::keys::DEFAULT_TENANT;
use cofferdam_ledger::LedgerError;
use cofferdam_ledger::keys::Principal;
use http_body_util::BodyExt;
use serde_json::Value;
use tokio::net::TcpListener;

use crate::MAX_BODY_BYTES;
use crate::answer::{refuse, respond};
use crate::call::{Call, Shared, query_of};
use crate::routes::{ROUTES, Route};

/// A body that is too large is read and dropped up to here: closing on a client that still sends
/// would reset its connection before it has read why.
const DRAINED_BYTES: usize = 16 * MAX_BODY_BYTES;

/// Whether a key is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Auth {
    /// `Authorization: Bearer <key>` on everything but /healthz.
    Keys,
    /// Everybody is the host's admin. Loopback listeners only.
    None,
}

/// Why a server does not start.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The address.
    #[error("cannot listen on {addr}: {source}")]
    Listen {
        /// What was asked for.
        addr: SocketAddr,
        /// What the system said.
        source: std::io::Error,
    },
    /// `--no-auth` beyond this machine.
    #[error(
        "--no-auth is for loopback listeners only, {0} is none: leave it out, or listen on 127.0.0.1"
    )]
    Open(SocketAddr),
}

/// A bound listener.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    addr: SocketAddr,
    shared: Arc<Shared>,
}

type Params = BTreeMap<String, String>;

/// A route with its schema, which is compiled for the first body that comes: compiled, those of all
/// routes are a quarter of what an idle server holds.
struct Endpoint {
    route: &'static Route,
    schema: OnceLock<Option<Validator>>,
    shared: Arc<Shared>,
}

impl Server {
    /// Binds, so that the address is known before the first request.
    pub async fn bind(addr: SocketAddr, flows: Flows, auth: Auth) -> Result<Self, ServerError> {
        if auth == Auth::None && !addr.ip().is_loopback() {
            return Err(ServerError::Open(addr));
        }
        let listen = |source| ServerError::Listen { addr, source };
        let listener = TcpListener::bind(addr).await.map_err(listen)?;
        let addr = listener.local_addr().map_err(listen)?;
        Ok(Self { listener, addr, shared: Arc::new(Shared { flows, no_auth: auth == Auth::None }) })
    }

    /// Where it listens.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Serves until `end` resolves, then lets open requests finish.
    pub async fn run(self, end: impl Future<Output = ()> + Send + 'static) -> std::io::Result<()> {
        let router = router(&self.shared);
        axum::serve(self.listener, router).with_graceful_shutdown(end).await
    }
}

fn router(shared: &Arc<Shared>) -> Router {
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
                    format!("{method} is not allowed here"),
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
        match self.call(params, request).await {
            Ok(call) => respond((self.route.handler)(call).await),
            Err(error) => respond(Err(error)),
        }
    }

    /// Key, role, query, body, JSON, schema: in this order, and before any of the route's own work.
    async fn call(&self, params: Params, request: Request) -> Result<Call, LedgerError> {
        let (parts, body) = request.into_parts();
        let text = |name: header::HeaderName| parts.headers.get(name).and_then(|v| v.to_str().ok());
        let who = self.principal(text(header::AUTHORIZATION)).await?;
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
        let query = query_of(self.route, parts.uri.query())?;
        let body = self.body(body).await?;
        Ok(Call {
            shared: Arc::clone(&self.shared),
            who,
            params,
            query,
            body,
            if_none_match: text(header::IF_NONE_MATCH).map(str::to_owned),
            wants_events: text(header::ACCEPT).is_some_and(|a| a.contains("text/event-stream")),
            wants_page: text(header::ACCEPT).is_some_and(|a| a.contains("text/html")),
        })
    }

    async fn principal(&self, authorization: Option<&str>) -> Result<Principal, LedgerError> {
        if self.shared.no_auth || self.route.roles.is_empty() {
            let tenant = TenantId::parse(DEFAULT_TENANT)
                .map_err(|e| Refusal::new(ErrorCode::Internal, e.to_string()))?;
            return Ok(Principal { key_id: "no-auth".into(), tenant, roles: vec![Role::Admin] });
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
        Ok(self.shared.flows.ledger.key_principal(secret.trim()).await?.ok_or_else(unauthorized)?)
    }

    fn schema(&self) -> Option<&Validator> {
        // The table's own schemas compile; a test holds that, so an uncompilable one is only unchecked here.
        let compiled = || self.route.request.and_then(|schema| Validator::compile(&schema()).ok());
        self.schema.get_or_init(compiled).as_ref()
    }

    async fn body(&self, body: Body) -> Result<Value, Refusal> {
        let Some(schema) = self.schema() else { return Ok(Value::Null) };
        let too_large = || {
            Refusal::new(
                ErrorCode::BodyTooLarge,
                format!("a body is at most {MAX_BODY_BYTES} bytes"),
            )
            .with(serde_json::json!({"limit": MAX_BODY_BYTES}))
        };
        let mut body = body;
        let mut bytes = Vec::new();
        let mut size = 0;
        while let Some(frame) = body.frame().await {
            let frame =
                frame.map_err(|_| Refusal::new(ErrorCode::InvalidJson, "the body broke off"))?;
            let Ok(data) = frame.into_data() else { continue };
            size += data.len();
            if size <= MAX_BODY_BYTES {
                bytes.extend_from_slice(&data);
            } else if size > DRAINED_BYTES {
                break;
            }
        }
        if size > MAX_BODY_BYTES {
            return Err(too_large());
        }
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
