//! Whom a request names: the control plane, or a port of a sandbox.

use axum::http::{HeaderMap, Uri};
use cofferdam_live::ResumeRequest;
use hyper::Request;

use crate::envd::ENVD_PORT;
use crate::find::{self, is_of};
use crate::headers::{ID, PORT, TOKEN, TRAFFIC, carried};
use crate::query;
use crate::route::Surface;

/// Letters of the id of a sandbox.
const SANDBOX_LETTERS: usize = 20;

/// Destination of a request of an E2B client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Target {
    /// The control plane.
    Control,
    /// A port of a sandbox; the id is whatever text was given.
    Sandbox { id: String, port: u16 },
    /// envd of the sandbox that the signature fits.
    Signed,
    /// envd of the sandbox that has this token.
    Token(String),
}

/// Whom a request's headers and path name. Pure.
pub(crate) fn target(uri: &Uri, headers: &HeaderMap) -> Option<Target> {
    let path = uri.path();
    let (first, is_control) = (find::first(path), is_of(Surface::Control, path));
    if let Some(id) = headers.get(ID) {
        let id = id.to_str().unwrap_or("").to_owned();
        let port =
            headers.get(PORT).map_or(Some(ENVD_PORT), |port| port.to_str().ok()?.parse().ok());
        // Clients before 2.30 name the sandbox in calls of the control plane too, of which envd has only `/health`.
        if port != Some(ENVD_PORT) || !is_control || first == "health" {
            // Nothing listens on port 0, and the answer says so.
            return Some(Target::Sandbox { id, port: port.unwrap_or(0) });
        }
    }
    // Clients before 2.30 name no sandbox once they have connected to one; no other call has its token.
    if let Some(token) = carried(headers, TOKEN)
        && is_of(Surface::Envd, path)
    {
        return Some(Target::Token(token.to_owned()));
    }
    if is_control {
        return Some(Target::Control);
    }
    let signed = || uri.query().is_some_and(|query| query::value(query, "signature").is_some());
    (first == "files" && signed()).then_some(Target::Signed)
}

/// The port of a sandbox that `PORT-ID` names, the first label of a name below one of this server's. An id is not guessable, so
/// a page that knows one was given it. Pure.
pub(crate) fn of_label(label: &str) -> Option<Target> {
    let (port, id) = label.split_once('-')?;
    let is_id = id.len() == SANDBOX_LETTERS && id.bytes().all(|b| b.is_ascii_alphanumeric());
    let port = port.parse::<u16>().ok().filter(|port| *port > 0 && is_id)?;
    Some(Target::Sandbox { id: id.to_ascii_lowercase(), port })
}

/// What a request to a sandbox may wake it with; `None`: it asks whether it runs. Pure.
pub(crate) fn knock<B>(port: u16, request: &Request<B>) -> Option<ResumeRequest> {
    let headers = request.headers();
    match port {
        ENVD_PORT if request.uri().path() == "/health" => None,
        ENVD_PORT => Some(ResumeRequest::Envd(carried(headers, TOKEN).map(str::to_owned))),
        _ => Some(ResumeRequest::Port(carried(headers, TRAFFIC).map(str::to_owned))),
    }
}

#[cfg(test)]
mod tests {

    use super::*;

    fn of(uri: &str, headers: &[(&'static str, &str)]) -> Option<Target> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.insert(*name, value.parse().unwrap());
        }
        target(&uri.parse().unwrap(), &map)
    }

    #[test]
    fn a_request_is_routed_by_itself_and_not_by_its_connection() {
        let envd = Target::Sandbox { id: "x".into(), port: ENVD_PORT };
        assert_eq!(of("/health", &[(ID, "x")]), Some(envd.clone()));
        assert_eq!(of("/health", &[(ID, "x"), (PORT, "49983")]), Some(envd));
        for call in ["/sandboxes/x/connect", "/v2/sandboxes"] {
            assert_eq!(of(call, &[(ID, "x")]), Some(Target::Control), "{call}");
            let service = Target::Sandbox { id: "x".into(), port: 80 };
            assert_eq!(of(call, &[(ID, "x"), (PORT, "80")]), Some(service), "{call}");
        }
        let port = |port| Some(Target::Sandbox { id: "x".into(), port });
        assert_eq!(of("/api/runs", &[(ID, "x"), (PORT, "3000")]), port(3_000));
        for bad in ["", "-1", "70000", "x"] {
            assert_eq!(of("/", &[(ID, "x"), (PORT, bad)]), port(0), "{bad}");
        }
        for path in
            ["/health", "/sandboxes", "/v2/sandboxes?x=1", "/sandboxes/a/timeout", "/v3/templates"]
        {
            assert_eq!(of(path, &[]), Some(Target::Control), "{path}");
        }
        assert_eq!(of("/files?path=a&signature=v1_x", &[]), Some(Target::Signed));
        for path in
            ["/process.Process/Start", "/files?path=a", "/health", "/filesystem.Filesystem/Stat"]
        {
            assert_eq!(of(path, &[(TOKEN, "t")]), Some(Target::Token("t".into())), "{path}");
            let named = Some(Target::Sandbox { id: "x".into(), port: ENVD_PORT });
            assert_eq!(of(path, &[(TOKEN, "t"), (ID, "x")]), named, "{path}");
        }
        for ours in ["/sandboxes", "/v2/sandboxes"] {
            assert_eq!(of(ours, &[(TOKEN, "t")]), Some(Target::Control), "{ours}");
        }
        for ours in ["/healthz", "/api/sandboxes", "/api/runs", "/", "/files?path=a", "/v1/x"] {
            assert_eq!(of(ours, &[]), None, "{ours}");
        }
    }

    #[test]
    fn a_sandbox_has_a_name_below_each_name_of_the_server_and_nowhere_else() {
        let id = "a1".repeat(10);
        let wanted = Target::Sandbox { id: id.clone(), port: 3_000 };
        for good in [&id, &id.to_uppercase()] {
            assert_eq!(of_label(&format!("3000-{good}")), Some(wanted.clone()), "{good}");
        }
        for bad in [
            format!("0-{id}"),
            format!("70000-{id}"),
            format!("-{id}"),
            format!("x-{id}"),
            format!("3000-{}", "a".repeat(19)),
            format!("3000-{}.", "a".repeat(19)),
            id,
            String::new(),
        ] {
            assert_eq!(of_label(&bad), None, "{bad}");
        }
    }
}
