//! A port of a sandbox that is not envd's: whatever listens there, on loopback too, gets the request.

use std::sync::Arc;

use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use cofferdam_http::ConnectionPermit;
use cofferdam_live::{DialPort, GuestError, PortConnection, VISITORS};
use hyper::Request;
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::io::copy_bidirectional;

use crate::answer;
use crate::envd::state::Envd;
use crate::envd::token::is_same;
use crate::headers::{ID, PORT, TOKEN, TRAFFIC, carried};

/// The agent says so where nobody listens.
const CLOSED: u16 = 502;
/// Of this server, or of its clients: nothing for a program inside.
const OURS: [&str; 5] = [ID, PORT, TRAFFIC, TOKEN, "x-api-key"];
/// How this server's keys begin.
const KEYS: [&[u8]; 2] = [b"cfd_", b"e2b_"];

/// Passes one request on, and an upgraded connection with it.
pub(crate) async fn answer(
    envd: &Envd,
    port: u16,
    mut request: Request<Incoming>,
) -> Response<Body> {
    let id = envd.guest.facts.id.as_str();
    if let Some(traffic) = &envd.guest.facts.traffic
        && (envd.guest.is_revoked() || !opens(request.headers(), traffic))
    {
        return answer::error(
            403,
            "this sandbox is private: send its token as e2b-traffic-access-token",
        );
    }
    let PortConnection { stream, lease } = match envd.guest.ask(DialPort { port }).await {
        Ok(connection) => connection,
        Err(GuestError::Busy) => {
            let why =
                format!("{VISITORS} connections to ports of this sandbox are open; try again");
            return answer::error(503, why);
        }
        Err(GuestError::Refused { status: CLOSED | 400, .. }) => {
            return answer::port_closed(id, port);
        }
        Err(_) => return answer::not_found(id),
    };
    // Until the connection and its tunnel have ended.
    let kept = Arc::new((lease, request.extensions_mut().remove::<Arc<ConnectionPermit>>()));
    let Ok((mut sender, connection)) = http1::handshake(TokioIo::new(stream)).await else {
        return answer::port_closed(id, port);
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
    without_key(request.headers_mut());
    // The path alone: an absolute form is for proxies, and the program inside is none.
    let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
    if let Ok(path) = path.parse() {
        *request.uri_mut() = path;
    }
    let mut response = match sender.send_request(request).await {
        Ok(response) => response,
        Err(error) => {
            tracing::debug!(%error, port, "a program in a sandbox gave no answer");
            return answer::error(502, "the program on this port gave no answer");
        }
    };
    if response.status() == StatusCode::SWITCHING_PROTOCOLS && !wants_upgrade {
        return answer::error(
            502,
            "the program on this port switched protocols without a request for it",
        );
    }
    if response.status() == StatusCode::SWITCHING_PROTOCOLS
        && let Some(ours) = ours
    {
        let theirs = hyper::upgrade::on(&mut response);
        // With a token it lasts as long as that.
        let token_of = envd.guest.facts.traffic.is_some().then(|| envd.guest.clone());
        let revoked = async move {
            match token_of {
                Some(guest) => guest.revoked().await,
                None => std::future::pending().await,
            }
        };
        tokio::spawn(async move {
            if let (Ok(ours), Ok(theirs)) = tokio::join!(ours, theirs) {
                let (mut ours, mut theirs) = (TokioIo::new(ours), TokioIo::new(theirs));
                tokio::select! {
                    _ = copy_bidirectional(&mut ours, &mut theirs) => {}
                    () = revoked => {}
                }
            }
            // The server's own connection is over for its listener, which counts it all the same.
            drop(kept);
        });
    }
    response.map(Body::new)
}

/// A key of this server is for this server. What else a client says of itself is for the program inside.
fn without_key(headers: &mut HeaderMap) {
    let is_ours = |value: &HeaderValue| {
        let text = value.as_bytes();
        let mut words = text.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
        words.any(|word| KEYS.iter().any(|begin| word.starts_with(begin)))
    };
    if headers.get_all(header::AUTHORIZATION).iter().any(is_ours) {
        headers.remove(header::AUTHORIZATION);
    }
}

fn opens(headers: &HeaderMap, traffic: &str) -> bool {
    carried(headers, TRAFFIC).is_some_and(|given| is_same(given, traffic))
}

#[cfg(test)]
mod tests {

    use super::*;

    #[test]
    fn a3l_a_key_of_this_server_reaches_no_program_inside() {
        for (value, stays) in [
            ("Bearer cfd_00", false),
            ("bearer   e2b_00", false),
            ("cfd_00", false),
            ("Bearer of-a-program", true),
            ("Basic dXNlcjpjZmRf", true),
        ] {
            let mut headers = HeaderMap::new();
            headers.append(header::AUTHORIZATION, HeaderValue::from_static("Bearer own"));
            headers.append(header::AUTHORIZATION, HeaderValue::from_static(value));
            without_key(&mut headers);
            assert_eq!(headers.contains_key(header::AUTHORIZATION), stays, "{value}");
        }
    }
}
