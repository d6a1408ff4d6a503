//! E2B's API, beside ours at the same address: what the clients of E2B send, decided request by request.
//!
//! ```text
//! Host PORT-ID.domain, or E2b-Sandbox-Id --> a sandbox: 49983 = envd (process, filesystem, files), other = its own port
//! /sandboxes, /v2/sandboxes, /health ...  --> the control plane: `X-API-Key`
//! /files?signature=                       --> envd of the sandbox whose token signed it
//! X-Access-Token alone                    --> envd of the sandbox whose token it is
//! ```
//! **A sandbox is reached by its id alone only on its own ports; envd asks for its token.** What we cannot enforce is a
//! 400 that says so. The table of every endpoint is in `docs/e2b.md`.

mod adopted;
mod build_logs;
mod builds;
mod connect;
mod control;
mod create;
mod domain;
mod entry;
mod envd;
mod files;
mod filesystem;
mod kept;
mod logs;
mod multipart;
mod network;
mod packed;
mod page;
mod paths;
mod process;
mod proto;
mod proxy;
mod revocable;
mod room;
mod schema;
mod shape;
mod start;
mod tag_views;
mod tags;
mod template_lists;
mod template_routes;
mod templates;
mod uploads;
mod watchers;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::body::Body;
use axum::http::{HeaderMap, Response, Uri};
use cofferdam_contracts::id::{LiveId, RunId};
use cofferdam_flows::Error;
use cofferdam_live::{
    AllGuests, CREATE_PATIENCE, Guest, Knock, LivesOnForRequest, NamedGuest, RefuseElsewhere,
    WakeSandbox,
};
use hyper::Request;
use hyper::body::Incoming;

use crate::call::Shared;

use room::Room;

/// envd's port in every sandbox.
pub(crate) const ENVD_PORT: u16 = 49_983;
const ID: &str = "e2b-sandbox-id";
const PORT: &str = "e2b-sandbox-port";
const TOKEN: &str = "x-access-token";
const TRAFFIC: &str = "e2b-traffic-access-token";
/// First path segments of envd.
const ENVD: [&str; 6] =
    ["process.Process", "filesystem.Filesystem", "files", "health", "envs", "metrics"];
/// First path segments of the control plane. None of them is ours: our own routes begin with `/api` and `/healthz`.
const CONTROL: [&str; 16] = [
    "sandboxes",
    "v2",
    "v3",
    "health",
    "templates",
    "default-templates",
    "snapshots",
    "volumes",
    "volumecontent",
    "teams",
    "secrets",
    "access-tokens",
    "admin",
    "api-keys",
    "events",
    "nodes",
];

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
    let first = uri.path().trim_start_matches('/').split('/').next().unwrap_or("");
    let is_control = CONTROL.contains(&first);
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
        && ENVD.contains(&first)
    {
        return Some(Target::Token(token.to_owned()));
    }
    if is_control {
        return Some(Target::Control);
    }
    let signed = || uri.query().is_some_and(|query| shape::query(query, "signature").is_some());
    (first == "files" && signed()).then_some(Target::Signed)
}

/// A header's text.
fn carried<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

/// What a request to a sandbox may wake it with; `None`: it asks whether it runs. Pure.
fn knock<B>(port: u16, request: &Request<B>) -> Option<Knock> {
    let headers = request.headers();
    match port {
        ENVD_PORT if request.uri().path() == "/health" => None,
        ENVD_PORT => Some(Knock::Envd(carried(headers, TOKEN).map(str::to_owned))),
        _ => Some(Knock::Port(carried(headers, TRAFFIC).map(str::to_owned))),
    }
}

/// What serves E2B's clients.
#[derive(Debug)]
pub(crate) struct Front {
    pub(crate) shared: Arc<Shared>,
    /// What is known of each sandbox that was talked to: its processes and watchers.
    rooms: Mutex<HashMap<LiveId, Arc<Room>>>,
    /// Where files for builds may be sent.
    links: uploads::Links,
}

impl Front {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { shared, rooms: Mutex::default(), links: uploads::Links::default() }
    }

    pub(crate) async fn answer(
        &self,
        target: Target,
        request: Request<Incoming>,
    ) -> Response<Body> {
        match target {
            Target::Control => control::answer(self, request).await,
            Target::Signed => match files::signer(self, request.uri()).await {
                Err(refused) => shape::refused(refused),
                Ok(Some(room)) => enter(&room, request).await,
                Ok(None) => {
                    shape::error(401, "the signature fits no sandbox that runs on this server")
                }
            },
            Target::Token(token) => match self.owner(&token).await {
                Err(refused) => shape::refused(refused),
                Ok(Some(room)) => enter(&room, request).await,
                Ok(None) => shape::not_found("unknown"),
            },
            Target::Sandbox { id, port } => match self.reached(&id, port, &request).await {
                Err(refused) => shape::refused(refused),
                Ok(None) => shape::not_found(&id),
                Ok(Some(room)) if port == ENVD_PORT => enter(&room, request).await,
                // What anybody may reach takes no token that could end.
                Ok(Some(room)) if room.guest.facts.traffic.is_none() => {
                    proxy::answer(&room, port, request).await
                }
                Ok(Some(room)) => {
                    revocable::while_open(&room.guest, proxy::answer(&room, port, request)).await
                }
            },
        }
    }

    /// The running sandbox of this id; one that is paused and waits for requests is resumed by them. Whether it runs is no
    /// such request. One that another process holds is refused.
    async fn reached(
        &self,
        id: &str,
        port: u16,
        request: &Request<Incoming>,
    ) -> Result<Option<Arc<Room>>, Error> {
        let Ok(id) = LiveId::parse(id) else { return Ok(None) };
        let lives_on = LivesOnForRequest { patience: CREATE_PATIENCE };
        if let Some(room) = self.room(&id).await?
            && room.guest.ask(lives_on).await.unwrap_or(false)
        {
            return Ok(Some(room));
        }
        let lives = &self.shared.live;
        if let Some(knock) = knock(port, request)
            && lives.ask(WakeSandbox { id: id.clone(), knock }).await?.is_some()
            && let Some(room) = self.room(&id).await?
        {
            return Ok(Some(room));
        }
        // One that runs elsewhere is not said to be gone.
        lives.ask(RefuseElsewhere { id }).await.map(|()| None)
    }

    /// The running sandbox that has this token.
    async fn owner(&self, token: &str) -> Result<Option<Arc<Room>>, Error> {
        let all = self.shared.live.ask(AllGuests).await?;
        let mut open = all.into_iter().filter(|guest| !guest.is_revoked());
        match open.find(|guest| room::is_same(token, &guest.facts.token)) {
            Some(guest) => self.room(&guest.facts.id).await,
            None => Ok(None),
        }
    }

    /// A running sandbox, by its id.
    async fn room(&self, id: &LiveId) -> Result<Option<Arc<Room>>, Error> {
        let known = self.rooms().get(id).map(|room| room.guest.facts.run.clone());
        let Some(guest) = self.shared.live.ask(NamedGuest { id: id.clone() }).await? else {
            let mut rooms = self.rooms();
            // Another life of it may have been entered meanwhile.
            if rooms.get(id).map(|room| &room.guest.facts.run) == known.as_ref() {
                rooms.remove(id);
            }
            return Ok(None);
        };
        if known.is_none() {
            self.tidy().await;
        }
        Ok(Some(self.entered(guest)))
    }

    /// The room of a sandbox that runs.
    fn entered(&self, guest: Guest) -> Arc<Room> {
        let mut rooms = self.rooms();
        let room = rooms.entry(guest.facts.id.clone());
        let room = room.or_insert_with(|| Room::of(guest.clone()));
        // A sandbox that was paused has another life.
        if room.guest.facts.run != guest.facts.run {
            *room = Room::of(guest);
        }
        Arc::clone(room)
    }

    /// Forgets the rooms of sandboxes that are over.
    async fn tidy(&self) {
        // Only those that were there before it is asked who runs: one that is entered meanwhile stays.
        let known: HashSet<RunId> =
            self.rooms().values().map(|room| room.guest.facts.run.clone()).collect();
        let Ok(all) = self.shared.live.ask(AllGuests).await else { return };
        let running: HashSet<&RunId> = all.iter().map(|guest| &guest.facts.run).collect();
        let is_over = |run: &RunId| known.contains(run) && !running.contains(run);
        self.rooms().retain(|_, room| !is_over(&room.guest.facts.run));
    }

    fn rooms(&self) -> MutexGuard<'_, HashMap<LiveId, Arc<Room>>> {
        // A poisoned lock only means that somebody panicked beside it; the map is whole.
        self.rooms.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request to envd, which goes on as long as the sandbox's token is good.
async fn enter(room: &Arc<Room>, request: Request<Incoming>) -> Response<Body> {
    revocable::while_open(&room.guest, envd::answer(room, request)).await
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
}
