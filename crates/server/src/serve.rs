//! The server: routes from the table, the checks that every request passes, and a graceful end.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::body::HttpBody;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request};
use axum::http::{HeaderMap, Method, Response, header};
use axum::routing::{MethodFilter, MethodRouter, on};
use cofferdam_contracts::error::{ErrorCode, Refusal, Violation};
use cofferdam_contracts::id::TenantId;
use cofferdam_contracts::key::Role;
use cofferdam_contracts::schema::{Validator, parse_json, unstorable};
use cofferdam_flows::Error;
use cofferdam_flows::Flows;
use cofferdam_flows::keys::DEFAULT_TENANT;
use cofferdam_ledger::keys::{KEYLESS, Principal};
use cofferdam_live::LiveClient;
use http_body_util::BodyExt;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::MAX_BODY_BYTES;
use crate::answer::{refuse, respond};
use crate::call::{Call, Shared, query_of};
use crate::door::{Door, HostName, is_json};
use crate::e2b::Front;
use crate::listen::{Local, Serving};
use crate::public::{self, PublicUrl};
use crate::routes::{ROUTES, Route};
use crate::tls::Tls;

/// A body that is too large is read and dropped up to here: closing on a client that still sends
/// would reset its connection before it has read why.
const DRAINED_BYTES: usize = 16 * MAX_BODY_BYTES;
/// How long a body may take to arrive: 1 MiB at the rate of a telephone line.
pub const BODY_PATIENCE: Duration = Duration::from_secs(30);
/// How long an answer may take to begin. A long poll waits 30 s; every proof over a large record is the longest.
pub const ANSWER_PATIENCE: Duration = Duration::from_secs(300);

/// Whether a key is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Auth {
    /// `Authorization: Bearer <key>` on everything but /healthz.
    Keys,
    /// A caller without a key is a submitter and approver of the default tenant. Loopback listeners only.
    None,
}

/// Where a server answers, and to whom.
#[derive(Debug)]
pub struct Doors {
    /// Its address; port 0 takes a free one.
    pub addr: SocketAddr,
    /// Whether a key is asked for.
    pub auth: Auth,
    /// Names that requests may give it, besides its addresses.
    pub hosts: Vec<HostName>,
    /// The address by which people elsewhere reach it: what reply links begin with.
    pub public_url: Option<PublicUrl>,
    /// With a certificate, the address speaks TLS.
    pub tls: Option<Tls>,
    /// The socket for callers on this host.
    pub local: Option<Local>,
}

impl Doors {
    /// An address that asks for keys, and nothing else.
    #[must_use]
    pub fn at(addr: SocketAddr) -> Self {
        Self { addr, auth: Auth::Keys, hosts: Vec::new(), public_url: None, tls: None, local: None }
    }
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
        "--no-auth is for loopback listeners only, and {0} is not loopback: leave it out and make keys with \
         `cofferdam key create`, or listen on 127.0.0.1"
    )]
    Open(SocketAddr),
}

/// A bound server.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    doors: Doors,
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
    ///
    /// # Errors
    /// An address that cannot be had, or `--no-auth` beyond loopback.
    pub async fn bind(
        mut doors: Doors,
        flows: Flows,
        live: LiveClient,
    ) -> Result<Self, ServerError> {
        let addr = doors.addr;
        if doors.auth == Auth::None && !addr.ip().is_loopback() {
            return Err(ServerError::Open(addr));
        }
        let listen = |source| ServerError::Listen { addr, source };
        let listener = TcpListener::bind(addr).await.map_err(listen)?;
        doors.addr = listener.local_addr().map_err(listen)?;
        let said = doors.public_url.as_ref();
        let said_url = said.map(|url| url.as_str().to_owned());
        let public_url = public::url(said, doors.addr, &doors.hosts, doors.tls.is_some());
        // Who follows a link names its host.
        doors.hosts.extend(doors.public_url.iter().map(|url| url.host().clone()));
        let shared = Arc::new(Shared {
            flows,
            live,
            no_auth: doors.auth == Auth::None,
            public_url,
            said_url,
            names: doors.hosts.clone(),
            tls: doors.tls.is_some(),
        });
        Ok(Self { listener, doors, shared })
    }

    /// Where it listens.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.doors.addr
    }

    /// Serves until `end` resolves, then lets open requests finish.
    ///
    /// # Errors
    /// A local socket that cannot be listened on.
    pub async fn run(self, end: impl Future<Output = ()> + Send + 'static) -> std::io::Result<()> {
        let Doors { hosts, tls, local, .. } = self.doors;
        let tls = tls.map(|tls| tls.acceptor());
        let front = Front::new(Arc::clone(&self.shared));
        let serving = Serving::new(router(&self.shared), front, Door::new(hosts), tls);
        let (stop, stopped) = watch::channel(false);
        let served = serving.run(self.listener, local, stopped);
        let ended = async {
            end.await;
            let _ = stop.send(true);
            // Listeners ask this channel whether to stop, so it outlives them.
            std::future::pending::<()>().await;
        };
        tokio::select! {
            served = served => served,
            () = ended => Ok(()),
        }
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
        has_json(&parts.headers, &body)?;
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

    async fn principal(&self, authorization: Option<&str>) -> Result<Principal, Error> {
        // A link is its own key, and health is everybody's: nobody in particular asks.
        if self.route.roles.is_empty() {
            return Ok(keyless("no-key", Vec::new())?);
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
        let too_large = || {
            Refusal::new(
                ErrorCode::BodyTooLarge,
                format!("a body is at most {MAX_BODY_BYTES} bytes"),
            )
            .with(serde_json::json!({"limit": MAX_BODY_BYTES}))
        };
        let arrived = tokio::time::timeout(BODY_PATIENCE, gather(body)).await;
        let bytes = arrived
            .map_err(|_| {
                let waited = BODY_PATIENCE.as_secs();
                let message = format!("the body did not arrive within {waited} s");
                Refusal::new(ErrorCode::RequestTimeout, message)
            })??
            .ok_or_else(too_large)?;
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

/// The bytes of a body; `None` where it is too large, which is told after it was read, up to a bound.
async fn gather(mut body: Body) -> Result<Option<Vec<u8>>, Refusal> {
    let mut bytes = Vec::new();
    let mut size = 0;
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| {
            Refusal::new(ErrorCode::InvalidJson, "the body ended early; send the request again")
        })?;
        let Ok(data) = frame.into_data() else { continue };
        size += data.len();
        if size <= MAX_BODY_BYTES {
            bytes.extend_from_slice(&data);
        } else if size > DRAINED_BYTES {
            break;
        }
    }
    Ok((size <= MAX_BODY_BYTES).then_some(bytes))
}

/// Who calls a listener that asks for no key.
pub(crate) fn keyless_caller() -> Result<Principal, Refusal> {
    keyless(KEYLESS, vec![Role::Submitter, Role::Approver])
}

/// Somebody of the default tenant without a key.
fn keyless(key_id: &str, roles: Vec<Role>) -> Result<Principal, Refusal> {
    let tenant = TenantId::parse(DEFAULT_TENANT)
        .map_err(|e| Refusal::new(ErrorCode::Internal, e.to_string()))?;
    Ok(Principal { key_id: key_id.into(), tenant, roles })
}

/// Only JSON is read, on every route: what pages of other origins can send unasked is not JSON.
fn has_json(headers: &HeaderMap, body: &Body) -> Result<(), Refusal> {
    if body.is_end_stream() || is_json(headers) {
        return Ok(());
    }
    Err(Refusal::new(
        ErrorCode::UnsupportedMediaType,
        "a body is JSON: send Content-Type: application/json",
    ))
}
