//! Port 49983 of a sandbox, as envd has it.

use std::sync::Arc;

use axum::body::Body;
use axum::http::{Method, Response};
use cofferdam_ambient::clock;
use cofferdam_live::{GuestUsage, ReadUsage};
use hyper::Request;
use hyper::body::Incoming;
use serde_json::{Value, json};

use super::connect::{self, Fault};
use super::room::{Room, account};
use super::{files, filesystem, process, schema, shape};

/// The version whose behaviour is served: clients choose what they send by it.
pub(crate) const VERSION: &str = "0.6.13";
const PROCESS: &str = "/process.Process/";
const FILESYSTEM: &str = "/filesystem.Filesystem/";
const MIB: u64 = 1024 * 1024;

/// Answers one request.
pub(crate) async fn answer(room: &Arc<Room>, request: Request<Incoming>) -> Response<Body> {
    let path = request.uri().path().to_owned();
    match (request.method(), path.as_str()) {
        (&Method::GET, "/health") => return shape::empty(204),
        (_, "/files") => return files::answer(room, request).await,
        _ => {}
    }
    if !room.opens(request.headers()) {
        return shape::error(401, "the access token of this sandbox is needed: X-Access-Token");
    }
    let service = [PROCESS, FILESYSTEM].into_iter().find(|service| path.starts_with(service));
    let Some(service) = service else { return plain(room, &request).await };
    if request.method() != Method::POST {
        return shape::error(405, "calls of envd are POST requests");
    }
    let method = path.strip_prefix(service).unwrap_or("").to_owned();
    let (parts, body) = request.into_parts();
    let methods = if service == PROCESS { &schema::PROCESS[..] } else { &schema::FILESYSTEM[..] };
    let known = methods.iter().find(|(name, _)| *name == method).map(|(_, known)| known);
    let spoken = match connect::spoken(&parts.headers, known) {
        Ok(spoken) => spoken,
        Err(response) => return *response,
    };
    match service {
        PROCESS => process::answer(room, &method, spoken, &parts.headers, body).await,
        _ => filesystem::answer(room, &method, spoken, &parts.headers, body).await,
    }
}

/// Routes without a service.
async fn plain(room: &Room, request: &Request<Incoming>) -> Response<Body> {
    match (request.method(), request.uri().path()) {
        (&Method::GET, "/envs") => match variables(room).await {
            Ok(value) => shape::json_of(200, &value),
            Err(fault) => fault.response(),
        },
        (&Method::GET, "/metrics") => match metrics(room).await {
            Ok(value) => shape::json_of(200, &value),
            Err(fault) => fault.response(),
        },
        (_, "/files/compose") => shape::error(400, "/files/compose is not supported"),
        _ => shape::error(404, "envd has no such route here"),
    }
}

/// What its default user's commands find in their environment.
async fn variables(room: &Room) -> Result<Value, Fault> {
    Ok(json!(room.environment(account(None)?).await?))
}

/// What the sandbox uses, as envd tells it.
pub(crate) async fn metrics(room: &Room) -> Result<Value, Fault> {
    let used = room.guest.ask(ReadUsage).await;
    let GuestUsage { usage, lived_ms } = used.map_err(|error| super::paths::unavailable(&error))?;
    let limits = &room.guest.facts.limits;
    let now = clock::now_ms();
    // Of all its life: a sandbox that is asked often has no other memory of it.
    let percent = usage.cpu_ms.saturating_mul(10_000).checked_div(lived_ms.max(1)).unwrap_or(0);
    Ok(json!({
        "ts": now / 1_000,
        "cpu_count": cpus(limits.cpu),
        "cpu_used_pct": percent_of(percent),
        "mem_used": usage.rss_kb.saturating_mul(1_024),
        "mem_total": limits.mem_mb.unwrap_or(0).saturating_mul(MIB),
        "mem_cache": 0,
        "disk_used": usage.disk_bytes.saturating_sub(usage.disk_free_bytes),
        "disk_total": usage.disk_bytes,
    }))
}

/// Hundredths of a percent as a number with two decimals.
fn percent_of(hundredths: u64) -> Value {
    let text = format!("{}.{:02}", hundredths / 100, hundredths % 100);
    text.parse::<f64>().map_or(Value::Null, Value::from)
}

/// Whole CPUs, at least one: what these clients can read.
pub(crate) fn cpus(limit: Option<f64>) -> u64 {
    let whole = limit.map(|limit| format!("{:.0}", limit.ceil()));
    whole.and_then(|text| text.parse().ok()).unwrap_or(1).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpus_are_whole_and_percents_have_decimals() {
        assert_eq!([cpus(None), cpus(Some(0.5)), cpus(Some(2.0)), cpus(Some(2.1))], [1, 1, 2, 3]);
        assert_eq!(percent_of(1_205), json!(12.05));
    }
}
