//! E2B's control plane: the life of sandboxes, under the caller's key.
//!
//! One file: the routes of one control plane.

use axum::body::Body;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, Method, Response};
use cofferdam_ambient::clock;
use cofferdam_contracts::error::ErrorCode;
use cofferdam_contracts::id::LiveId;
use cofferdam_contracts::instant::Instant;
use cofferdam_contracts::key::Role;
use cofferdam_contracts::live::{LiveState, LiveView};
use cofferdam_contracts::sandbox::IsolationClass;
use cofferdam_flows::Error;
use cofferdam_ledger::keys::Principal;
use cofferdam_ledger::live::LiveFilter;
use cofferdam_live::{
    CreateSandbox, ExtendSandbox, Facts, FindGuest, Guest, KillSandbox, LivesOn, NamedGuest,
    ResumeOptions, ResumeSandbox, ViewSandbox,
};
use hyper::Request;
use hyper::body::{Body as _, Incoming};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::create::NewSandbox;
use super::domain::domain;
use super::envd::{self, VERSION, cpus};
use super::uploads::ArchivePath;
use super::{Front, kept, logs, network, page, shape, template_routes, templates, uploads};
use crate::door::is_json;
use crate::serve::{ANSWER_PATIENCE, keyless_caller};

/// Who serves: this installation has no clusters.
const CLIENT: &str = "cofferdam";
/// Time to live in seconds without one: of the newer and of the older creation, and of a connect.
const NEW_S: u64 = 300;
pub(super) const OLD_S: u64 = 15;
const CONNECT_S: u64 = 300;
/// Header of a creation: E2B's body has no place for it, and every client sends the headers that its user gives.
const CLASS: &str = "x-cofferdam-class";
/// Rows of one page.
const MAX_PAGE: i64 = 100;
/// Rows of the older list, which has no pages.
const MAX_LIST: i64 = 1_000;
/// Sandboxes whose metrics one request may ask for.
const MAX_METRICS: usize = 100;

pub(super) type Outcome = Result<Response<Body>, Response<Body>>;

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Timeout {
    pub(super) timeout: Option<u64>,
    /// Of a connect and a resume; `false`: its files alone, whatever was kept.
    pub(super) memory: Option<bool>,
    #[serde(rename = "autoPause")]
    pub(super) auto_pause: Option<bool>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Pause {
    /// Clients say `true`, or nothing, where their user says nothing: a class that keeps files alone does so, which is
    /// documented.
    pub(super) memory: Option<bool>,
    #[serde(rename = "requireHealthyGuest")]
    _require_healthy_guest: Option<bool>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NewSnapshot {
    pub(super) name: Option<String>,
    #[serde(rename = "memory")]
    _memory: Option<bool>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Fork {
    pub(super) count: Option<u64>,
    pub(super) timeout: Option<u64>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Refresh {
    duration: Option<u64>,
}

/// One request.
pub(super) struct Asking<'a> {
    pub(super) front: &'a Front,
    pub(super) who: Principal,
    /// `host[:port]` below which sandboxes have names.
    pub(super) domain: String,
    pub(super) query: String,
    dedup: Option<String>,
    /// The weakest class that is accepted, by [`CLASS`].
    pub(super) class_min: Option<String>,
    pub(super) body: Incoming,
}

/// Answers one request.
pub(crate) async fn answer(front: &Front, request: Request<Incoming>) -> Response<Body> {
    let (parts, body) = request.into_parts();
    let path = parts.uri.path().to_owned();
    if path == "/health" {
        return shape::empty(204);
    }
    let names: Vec<&str> = path.trim_matches('/').split('/').collect();
    if let (&Method::PUT, ["templates", template, "files", hash]) =
        (&parts.method, names.as_slice())
    {
        let path = ArchivePath { template, hash };
        let query = parts.uri.query().unwrap_or("");
        return uploads::take(front, path, query, body).await;
    }
    let who = match caller(front, &parts.headers).await {
        Ok(who) => who,
        Err(response) => return response,
    };
    let writes = is_write(&parts.method, &names);
    if !may(&who, writes) {
        let role = if writes { "submitter" } else { "submitter, approver, operator or auditor" };
        return shape::error(403, format!("this needs a key with the role {role}"));
    }
    if !body.is_end_stream() && !is_json(&parts.headers) {
        return shape::error(415, "a body is JSON: send Content-Type: application/json");
    }
    let header = |name: &str| {
        let value = parts.headers.get(name).and_then(|value| value.to_str().ok());
        value.filter(|text| !text.is_empty()).map(str::to_owned)
    };
    let call = Asking {
        front,
        who,
        domain: domain(&parts.headers, &front.shared.names),
        query: parts.uri.query().unwrap_or("").to_owned(),
        dedup: header("idempotency-key"),
        class_min: header(CLASS),
        body,
    };
    let routed = routed(call, &parts, &names);
    match tokio::time::timeout(ANSWER_PATIENCE, routed).await {
        Ok(answered) => answered.unwrap_or_else(|refused| refused),
        Err(_) => {
            let waited = ANSWER_PATIENCE.as_secs();
            shape::error(503, format!("no answer within {waited} s; send the request again"))
        }
    }
}

async fn routed(call: Asking<'_>, parts: &Parts, names: &[&str]) -> Outcome {
    match (parts.method.as_str(), names) {
        ("POST", ["v2", "sandboxes"]) => create(call, NEW_S).await,
        ("POST", ["sandboxes"]) => create(call, OLD_S).await,
        ("GET", ["v2", "sandboxes"]) => list(call, true).await,
        ("GET", ["sandboxes"]) => list(call, false).await,
        ("GET", ["sandboxes", "metrics"]) => metrics_of_all(call).await,
        ("GET", ["sandboxes", id]) => detail(call, id).await,
        ("DELETE", ["sandboxes", id]) => kill(call, id).await,
        ("POST", ["v2", "sandboxes", id, "connect"] | ["sandboxes", id, "connect"]) => {
            connect(call, id).await
        }
        ("POST", ["sandboxes", id, "resume"]) => kept::resume(call, id).await,
        ("POST", ["sandboxes", id, "pause"]) => kept::pause(call, id).await,
        ("POST", ["sandboxes", id, "fork"]) => kept::fork(call, id).await,
        ("POST", ["sandboxes", id, "snapshots"]) => kept::snapshot(call, id).await,
        ("GET", ["snapshots"]) => kept::list(call).await,
        ("POST", ["sandboxes", id, "timeout"]) => timeout(call, id).await,
        ("POST", ["sandboxes", id, "refreshes"]) => refresh(call, id).await,
        ("PUT", ["sandboxes", id, "network"]) => network::update(call, id).await,
        ("GET", ["sandboxes", id, "metrics"]) => metrics(call, id).await,
        ("GET", ["sandboxes", id, "logs"]) => logs::logs(call, id, false).await,
        ("GET", ["v2", "sandboxes", id, "logs"]) => logs::logs(call, id, true).await,
        (_, ["templates", ..] | ["v2" | "v3", "templates", ..] | ["default-templates"]) => {
            template_routes::routed(call, parts, names).await
        }
        (_, names) => Err(unsupported(names)),
    }
}

/// What is not there says so, and never hangs.
fn unsupported(names: &[&str]) -> Response<Body> {
    let what = match names {
        ["volumes" | "volumecontent", ..] => "volumes",
        ["secrets", ..] => "E2B's secrets: see `cofferdam secret`",
        ["teams", ..] => "teams",
        ["access-tokens" | "api-keys", ..] => "E2B's keys: see `cofferdam key`",
        ["nodes", ..] => "nodes: see `cofferdam doctor`",
        ["events", ..] => "events of sandboxes: see GET /v2/sandboxes/{id}/logs",
        ["admin", ..] => "E2B's administration: see `cofferdam sandbox` and `cofferdam key`",
        _ => return shape::error(404, "E2B's API has no such route here"),
    };
    shape::error(400, format!("not supported: {what}"))
}

/// Whose key a request carries.
async fn caller(front: &Front, headers: &HeaderMap) -> Result<Principal, Response<Body>> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let bearer = text("authorization").and_then(|value| value.strip_prefix("Bearer "));
    let Some(secret) = text("x-api-key").or(bearer) else {
        return match front.shared.no_auth {
            true => keyless_caller().map_err(|refusal| shape::refused(refusal.into())),
            false => Err(shape::error(401, "an API key is needed: X-API-Key")),
        };
    };
    let found = front.shared.flows.ledger.keys().principal(secret.trim()).await;
    let found = found.map_err(|error| shape::refused(error.into()))?;
    found.ok_or_else(|| shape::error(401, "the API key is unknown or revoked"))
}

/// Whether a request changes something, or gives what does: a link for an upload is asked for with GET. Pure.
fn is_write(method: &Method, names: &[&str]) -> bool {
    *method != Method::GET || matches!(names, ["templates", _, "files", _])
}

fn may(who: &Principal, writes: bool) -> bool {
    let reads = [Role::Approver, Role::Operator, Role::Auditor];
    who.has(Role::Submitter) || !writes && reads.into_iter().any(|role| who.has(role))
}

pub(super) fn sandbox(
    Facts { id, template, alias, token, traffic, .. }: &Facts,
    domain: &str,
) -> Value {
    json!({
        "templateID": template,
        "alias": alias,
        "sandboxID": id,
        "clientID": CLIENT,
        "envdVersion": VERSION,
        "envdAccessToken": token,
        "trafficAccessToken": traffic,
        "domain": domain,
    })
}

/// The class of this name.
pub(super) fn class(name: &str) -> Result<IsolationClass, String> {
    IsolationClass::parse(name).ok_or_else(|| {
        let known: Vec<&str> = IsolationClass::ALL.iter().map(|class| class.as_str()).collect();
        let name: String = name.chars().take(64).collect();
        format!("{CLASS}: {name:?} is not an isolation class; known: {}", known.join(", "))
    })
}

async fn create(call: Asking<'_>, default_s: u64) -> Outcome {
    let Asking { front, who, domain, dedup, class_min, body, .. } = call;
    front.tidy().await;
    let asked: NewSandbox = shape::body(body).await?;
    if dedup.as_ref().is_some_and(|key| key.len() > 256) {
        return Err(shape::error(400, "the Idempotency-Key has more than 256 bytes"));
    }
    let class_min = class_min.map(|name| class(&name)).transpose();
    let class_min = class_min.map_err(|why| shape::error(400, why))?;
    let (template, wants_internet) = (asked.template_id.clone(), asked.wants_internet());
    let mut request =
        asked.request(default_s, dedup, class_min).map_err(|why| shape::error(400, why))?;
    let (flows, lives) = (&front.shared.flows, &front.shared.live);
    templates::choose(lives, &who, &template, &mut request).await?;
    if wants_internet {
        request.egress = flows.live_internet(&who).await.map_err(shape::refused)?;
    }
    let guest = lives.ask(CreateSandbox { who, request }).await.map_err(shape::refused)?;
    Ok(shape::json_of(201, &sandbox(&guest.facts, &domain)))
}

pub(super) fn missing(id: &str) -> Response<Body> {
    let id: String = id.chars().take(64).collect();
    shape::error(404, format!("sandbox {id:?} not found"))
}

/// The running sandbox of this name.
pub(super) async fn running(call: &Asking<'_>, id: &str) -> Result<Guest, Response<Body>> {
    let live = LiveId::parse(id).map_err(|_| missing(id))?;
    let guest = call.front.shared.live.ask(FindGuest { who: call.who.clone(), id: live }).await;
    guest.map_err(|error| found(id, error))
}

/// A refusal that a sandbox is not there has E2B's words.
pub(super) fn found(id: &str, error: Error) -> Response<Body> {
    match &error {
        Error::Refused(refusal) if refusal.code == ErrorCode::NotFound => missing(id),
        _ => shape::refused(error),
    }
}

async fn connect(call: Asking<'_>, id: &str) -> Outcome {
    let live = LiveId::parse(id).map_err(|_| missing(id))?;
    let Asking { front, who, domain, body, .. } = call;
    let asked: Timeout = shape::body(body).await?;
    let lives = &front.shared.live;
    let seconds = asked.timeout.unwrap_or(CONNECT_S);
    // `None`: it is not running any more.
    let extended = async |guest: Guest| {
        if guest.is_revoked() {
            let why = "the key that its tokens were made for is revoked: pause it and connect again for new ones, or kill it";
            return Err(shape::error(409, why));
        }
        if asked.auto_pause == Some(true) {
            let why = "autoPause: a sandbox that runs keeps what it was created with";
            return Err(shape::error(400, why));
        }
        let (who, id_of) = (who.clone(), guest.facts.id.clone());
        match lives.ask(ExtendSandbox { who, id: id_of, seconds, longer: true }).await {
            Ok(()) => Ok(Some(shape::json_of(200, &sandbox(&guest.facts, &domain)))),
            Err(Error::Refused(refusal)) if refusal.code == ErrorCode::NotFound => Ok(None),
            Err(error) => Err(found(id, error)),
        }
    };
    // The one of this process need not be looked for on record, nor one that is paused more often than once.
    let here = lives.ask(NamedGuest { id: live.clone() }).await.map_err(shape::refused)?;
    if let Some(guest) = here.filter(|guest| guest.facts.tenant == who.tenant)
        && guest.ask(LivesOn).await.unwrap_or(false)
        && let Some(response) = extended(guest).await?
    {
        return Ok(response);
    }
    let options = ResumeOptions::of(Some(seconds), asked.auto_pause, asked.memory);
    let resume = ResumeSandbox { who: who.clone(), id: live.clone(), options };
    if let Some(guest) = lives.ask(resume).await.map_err(|error| found(id, error))? {
        return Ok(shape::json_of(201, &sandbox(&guest.facts, &domain)));
    }
    let find = FindGuest { who: who.clone(), id: live };
    let guest = lives.ask(find).await.map_err(|error| found(id, error))?;
    extended(guest).await?.ok_or_else(|| missing(id))
}

async fn timeout(call: Asking<'_>, id: &str) -> Outcome {
    let live = LiveId::parse(id).map_err(|_| missing(id))?;
    let Asking { front, who, body, .. } = call;
    let asked: Timeout = shape::body(body).await?;
    let seconds = asked.timeout.ok_or_else(|| shape::error(400, "timeout is missing"))?;
    let extend = ExtendSandbox { who, id: live, seconds, longer: false };
    let extended = front.shared.live.ask(extend).await;
    extended.map_err(|error| found(id, error))?;
    Ok(shape::empty(204))
}

async fn refresh(call: Asking<'_>, id: &str) -> Outcome {
    let live = LiveId::parse(id).map_err(|_| missing(id))?;
    let Asking { front, who, body, .. } = call;
    let asked: Refresh = shape::body(body).await?;
    let seconds = asked.duration.unwrap_or(OLD_S);
    let extend = ExtendSandbox { who, id: live, seconds, longer: true };
    let extended = front.shared.live.ask(extend).await;
    extended.map_err(|error| found(id, error))?;
    Ok(shape::empty(204))
}

async fn kill(call: Asking<'_>, id: &str) -> Outcome {
    let live = LiveId::parse(id).map_err(|_| missing(id))?;
    let killed = call.front.shared.live.ask(KillSandbox { who: call.who, id: live }).await;
    call.front.tidy().await;
    match killed {
        Ok(true) => Ok(shape::empty(204)),
        Ok(false) => Err(missing(id)),
        Err(error) => Err(found(id, error)),
    }
}

async fn detail(call: Asking<'_>, id: &str) -> Outcome {
    let live = LiveId::parse(id).map_err(|_| missing(id))?;
    let lives = &call.front.shared.live;
    let view = lives.ask(ViewSandbox { who: call.who.clone(), id: live.clone() }).await;
    let view = view.map_err(|error| found(id, error))?;
    if !matches!(view.state, LiveState::Running | LiveState::Paused) {
        return Err(missing(id));
    }
    let on_timeout = if view.pause_on_timeout { "pause" } else { "kill" };
    let mut value = listed(&view);
    let names: Vec<&str> = view.egress.entries().iter().map(|entry| entry.as_str()).collect();
    let guest = lives.ask(NamedGuest { id: live }).await.map_err(shape::refused)?;
    if let Some(fields) = value.as_object_mut() {
        fields.insert("domain".into(), call.domain.into());
        // As enforced, whatever was asked for.
        fields.insert("allowInternetAccess".into(), false.into());
        let private = guest.as_ref().is_some_and(|guest| guest.facts.traffic.is_some());
        let network = json!({"allowOut": names, "denyOut": ["0.0.0.0/0", "::/0"], "allowPublicTraffic": !private});
        fields.insert("network".into(), network);
        fields.insert(
            "lifecycle".into(),
            json!({"autoResume": view.resume_on_traffic, "onTimeout": on_timeout}),
        );
        if let Some(guest) = &guest {
            fields.insert("alias".into(), guest.facts.alias.as_str().into());
        }
        // Who may only read is not given what runs commands.
        if let Some(guest) = guest.filter(|_| may(&call.who, true)) {
            fields.insert("envdAccessToken".into(), guest.facts.token.clone().into());
        }
    }
    Ok(shape::json_of(200, &value))
}

/// A sandbox in a list.
fn listed(view: &LiveView) -> Value {
    json!({
        "templateID": view.template,
        "alias": view.template,
        "sandboxID": view.id,
        "clientID": CLIENT,
        "startedAt": shape::time(view.started_at.unwrap_or(view.created_at)),
        "endAt": shape::time(view.ends_at.unwrap_or(view.created_at)),
        "cpuCount": cpus(view.cpu),
        "memoryMB": view.mem_mb.unwrap_or(0),
        "diskSizeMB": view.disk_mb.unwrap_or(0),
        "state": if view.state == LiveState::Paused { "paused" } else { "running" },
        "envdVersion": VERSION,
        "metadata": view.metadata,
    })
}

/// What a list's query asks for; anything else of it is refused.
fn filter(query: &str, paged: bool) -> Result<LiveFilter, String> {
    let mut filter =
        LiveFilter { limit: if paged { MAX_PAGE } else { MAX_LIST }, ..LiveFilter::default() };
    for (name, value) in page::pairs(query) {
        let value = shape::decoded(value).ok_or_else(|| format!("{name} is not UTF-8"))?;
        match name {
            "metadata" => filter.metadata = labels(&value)?,
            "state" => {
                for state in value.split(',') {
                    let known = [LiveState::Running, LiveState::Paused];
                    let known = known.into_iter().find(|known| known.as_str() == state);
                    filter.states.push(known.ok_or("state is neither running nor paused")?);
                }
            }
            "template" if paged => filter.template = Some(value),
            "limit" if paged => {
                filter.limit = page::bounded(name, &value, MAX_PAGE)?;
            }
            "nextToken" if paged => {
                let token = value
                    .split_once('.')
                    .and_then(|(at, id)| Some((at.parse().ok()?, LiveId::parse(id).ok()?)));
                filter.after = Some(token.ok_or("nextToken is not of this list")?);
            }
            "order" => match value.as_str() {
                "asc" => filter.oldest_first = true,
                "desc" => {}
                _ => return Err("order is neither asc nor desc".to_owned()),
            },
            "startedAfter" if paged => {
                let at = value.parse::<Instant>().map_err(|why| format!("startedAfter: {why}"))?;
                filter.started_from = Some(at.ms());
            }
            other => return Err(format!("the query's {other} is not supported")),
        }
    }
    // As E2B has it: the older list has running ones alone.
    if filter.states.is_empty() {
        filter.states.push(LiveState::Running);
        filter.states.extend(paged.then_some(LiveState::Paused));
    }
    Ok(filter)
}

/// Percent-decoded text in which a plus is a plus.
fn plain(text: &str) -> Option<String> {
    let decoded = percent_encoding::percent_decode_str(text).decode_utf8().ok()?;
    Some(decoded.into_owned())
}

/// Pairs as a query has them, of which each side was percent-encoded once before that.
fn labels(text: &str) -> Result<std::collections::BTreeMap<String, String>, String> {
    let pairs = text.split('&').filter(|pair| !pair.is_empty());
    pairs
        .map(|pair| {
            let (name, value) =
                pair.split_once('=').ok_or("metadata is made of pairs NAME=VALUE")?;
            let twice = |text: &str| shape::decoded(text).and_then(|once| plain(&once));
            let both = twice(name).zip(twice(value));
            both.ok_or_else(|| "metadata is not UTF-8".to_owned())
        })
        .collect()
}

async fn list(call: Asking<'_>, paged: bool) -> Outcome {
    let mut filter = filter(&call.query, paged).map_err(|why| shape::error(400, why))?;
    let limit = filter.limit;
    filter.limit = limit.saturating_add(1);
    let rows = &call.front.shared.flows.ledger;
    let fault = |error: cofferdam_ledger::LedgerError| shape::refused(error.into());
    let mut found = rows.live().list(&call.who.tenant, &filter).await.map_err(fault)?;
    let more = page::cut(&mut found, usize::try_from(limit).unwrap_or(usize::MAX));
    let values = Value::Array(found.iter().map(listed).collect());
    if !paged {
        return Ok(shape::json_of(200, &values));
    }
    let total = rows.live().running(&call.who.tenant).await.map_err(fault)?;
    let last = found.last().filter(|_| more);
    let next = last.map(|last| format!("{}.{}", last.created_at, last.id));
    let mut response = page::answer(&values, next.as_deref());
    response.headers_mut().insert("x-total-running", HeaderValue::from(total));
    Ok(response)
}

/// One sample, of now: none are kept.
async fn sample(front: &Front, guest: &Guest) -> Result<Value, Response<Body>> {
    let id = &guest.facts.id;
    let room = front.room(id).await.map_err(shape::refused)?;
    let room = room.ok_or_else(|| missing(id.as_str()))?;
    let now = envd::metrics(&room).await.map_err(|fault| shape::error(503, fault.message))?;
    let take = |name: &str| now.get(name).cloned().unwrap_or(Value::Null);
    let at = clock::now_ms();
    Ok(json!({
        "timestamp": shape::time(at), "timestampUnix": at / 1_000, "cpuCount": take("cpu_count"),
        "cpuUsedPct": take("cpu_used_pct"), "memUsed": take("mem_used"), "memTotal": take("mem_total"),
        "memCache": take("mem_cache"), "diskUsed": take("disk_used"), "diskTotal": take("disk_total"),
    }))
}

async fn metrics(call: Asking<'_>, id: &str) -> Outcome {
    let guest = running(&call, id).await?;
    Ok(shape::json_of(200, &json!([sample(call.front, &guest).await?])))
}

async fn metrics_of_all(call: Asking<'_>) -> Outcome {
    let asked = shape::query(&call.query, "sandbox_ids").unwrap_or_default();
    let ids: Vec<&str> = asked.split(',').filter(|id| !id.is_empty()).collect();
    if ids.is_empty() || ids.len() > MAX_METRICS {
        return Err(shape::error(400, format!("sandbox_ids has 1 to {MAX_METRICS} ids")));
    }
    let mut found = Map::new();
    for id in ids {
        // One that is another tenant's or over has no metrics, as one that never was.
        if let Ok(guest) = running(&call, id).await
            && let Ok(value) = sample(call.front, &guest).await
        {
            found.insert(id.to_owned(), value);
        }
    }
    Ok(shape::json_of(200, &json!({"sandboxes": found})))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lists_query_is_read_or_refused() {
        let read = filter("metadata=a%3Db%252520c%26d%3De&limit=3&state=running", true).unwrap();
        assert_eq!(read.states, [LiveState::Running]);
        assert_eq!(read.limit, 3);
        assert_eq!(
            read.metadata.into_iter().collect::<Vec<_>>(),
            [("a".into(), "b c".into()), ("d".into(), "e".into())]
        );
        let states = |query, paged| filter(query, paged).unwrap().states;
        assert_eq!(states("state=paused", true), [LiveState::Paused]);
        assert_eq!(states("state=paused,running", true).len(), 2);
        assert_eq!(states("state=running&state=paused", true), states("", true));
        assert_eq!(states("", false), [LiveState::Running]);
        let read = filter(&format!("nextToken=12.{}", "a".repeat(20)), true).unwrap();
        assert_eq!(read.after.unwrap().0, 12);
        let read =
            filter("order=asc&startedAfter=2026-01-19T08%3A30%3A00.000%2B00%3A00", true).unwrap();
        assert_eq!((read.oldest_first, read.started_from), (true, Some(1_768_811_400_000)));
        assert!(!filter("order=desc", true).unwrap().oldest_first);
        for bad in [
            "limit=0",
            "limit=101",
            "nextToken=x",
            "metadata=x",
            "order=x",
            "startedAfter=1",
            "state=ended",
            "x=y",
        ] {
            assert!(filter(bad, true).is_err(), "{bad}");
        }
    }

    #[test]
    fn a3f9_a_link_for_an_upload_is_a_write() {
        assert!(is_write(&Method::GET, &["templates", "t", "files", "h"]));
        assert!(is_write(&Method::POST, &["v3", "templates"]));
        assert!(!is_write(&Method::GET, &["templates", "t", "tags"]));
    }

    #[test]
    fn who_only_reads_creates_nothing() {
        let key = |role| Principal {
            key_id: "k".into(),
            tenant: cofferdam_contracts::id::TenantId::parse("t").unwrap(),
            roles: vec![role],
        };
        assert!(may(&key(Role::Submitter), true) && may(&key(Role::Admin), true));
        assert!(may(&key(Role::Auditor), false) && !may(&key(Role::Auditor), true));
    }
}
