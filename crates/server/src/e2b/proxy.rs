//! A port of a sandbox that is not envd's: whatever listens there, on loopback too, gets the request.

use std::sync::Arc;

use axum::body::Body;
use axum::http::{HeaderMap, Response, StatusCode, header};
use cofferdam_flows::live::{AgentError, VISITORS};
use hyper::Request;
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::io::copy_bidirectional;

use super::room::{PLACE_PATIENCE, Room, is_same};
use super::{ID, PORT, TOKEN, TRAFFIC, carried, shape};
use crate::bound::Place;

/// The agent says so where nobody listens.
const CLOSED: u16 = 502;
/// Of this server, or of its clients: nothing for a program inside.
const OURS: [&str; 5] = [ID, PORT, TRAFFIC, TOKEN, "x-api-key"];

/// Passes one request on, and an upgraded connection with it.
pub(crate) async fn answer(
    room: &Room,
    port: u16,
    mut request: Request<Incoming>,
) -> Response<Body> {
    let id = room.held.id.as_str();
    if let Some(traffic) = &room.held.traffic
        && !opens(request.headers(), traffic)
    {
        return shape::error(
            403,
            "this sandbox is private: send its token as e2b-traffic-access-token",
        );
    }
    // Until the connection and its tunnel have ended.
    let Some(share) = room.held.visit(PLACE_PATIENCE).await else {
        let why = format!("{VISITORS} connections to ports of this sandbox are open; try again");
        return shape::error(503, why);
    };
    let kept = Arc::new((share, request.extensions_mut().remove::<Arc<Place>>()));
    let stream = match room.held.agent.dial(port).await {
        Ok(stream) => stream,
        Err(AgentError::Refused { status: CLOSED | 400, .. }) => {
            return shape::port_closed(id, port);
        }
        Err(_) => return shape::not_found(id),
    };
    let Ok((mut sender, connection)) = http1::handshake(TokioIo::new(stream)).await else {
        return shape::port_closed(id, port);
    };
    let own = Arc::clone(&kept);
    tokio::spawn(async move {
        if let Err(error) = connection.with_upgrades().await {
            tracing::debug!(%error, "a connection to a sandbox's port ended");
        }
        drop(own);
    });
    let wants_upgrade = request.headers().contains_key(header::UPGRADE);
    let ours = wants_upgrade.then(|| hyper::upgrade::on(&mut request));
    for name in OURS {
        request.headers_mut().remove(name);
    }
    // The path alone: an absolute form is for proxies, and the program inside is none.
    let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
    if let Ok(path) = path.parse() {
        *request.uri_mut() = path;
    }
    let mut response = match sender.send_request(request).await {
        Ok(response) => response,
        Err(error) => {
            tracing::debug!(%error, port, "a program in a sandbox gave no answer");
            return shape::error(502, "the program on this port gave no answer");
        }
    };
    if response.status() == StatusCode::SWITCHING_PROTOCOLS && !wants_upgrade {
        return shape::error(
            502,
            "the program on this port switched protocols without a request for it",
        );
    }
    if response.status() == StatusCode::SWITCHING_PROTOCOLS
        && let Some(ours) = ours
    {
        let theirs = hyper::upgrade::on(&mut response);
        tokio::spawn(async move {
            if let (Ok(ours), Ok(theirs)) = tokio::join!(ours, theirs) {
                let (mut ours, mut theirs) = (TokioIo::new(ours), TokioIo::new(theirs));
                let _ = copy_bidirectional(&mut ours, &mut theirs).await;
            }
            // The server's own connection is over for its listener, which counts it all the same.
            drop(kept);
        });
    }
    response.map(Body::new)
}

fn opens(headers: &HeaderMap, traffic: &str) -> bool {
    carried(headers, TRAFFIC).is_some_and(|given| is_same(given, traffic))
}
