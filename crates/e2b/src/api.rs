//! E2B's API, by whom a request names.

use std::sync::Arc;

use axum::body::Body;
use axum::http::{HeaderMap, Response, Uri};
use cofferdam_contracts::id::LiveId;
use cofferdam_flows::{Error, Flows};
use cofferdam_http::{Api, Label, Reply, Site};
use cofferdam_live::{AwaitAlive, CREATE_PATIENCE, LiveClient, RefuseForeign, WakeSandbox};
use hyper::Request;
use hyper::body::Incoming;

use crate::dispatch::{control, envd, port};
use crate::envd::files::signature::is_signed;
use crate::envd::state::Envd;
use crate::envd::{ENVD_PORT, token};
use crate::routes::NO_ROUTE;
use crate::services::Services;
use crate::target::{Target, knock, of_label, target};
use crate::{answer, revocable};

/// E2B's API at a server's address.
#[derive(Debug)]
pub struct E2b {
    services: Arc<Services>,
}

impl Api for E2b {
    fn has_label(&self, label: &str) -> bool {
        of_label(label).is_some()
    }

    fn claims(&self, uri: &Uri, headers: &HeaderMap) -> bool {
        target(uri, headers).is_some()
    }

    fn answer(self: Arc<Self>, request: Request<Incoming>) -> Reply<'static> {
        Box::pin(async move {
            let target = match request.extensions().get::<Label>() {
                Some(Label(label)) => of_label(label),
                None => target(request.uri(), request.headers()),
            };
            match target {
                Some(target) => self.reached_by(target, request).await,
                None => answer::error(404, NO_ROUTE),
            }
        })
    }
}

impl E2b {
    /// With what it serves, at this address.
    #[must_use]
    pub fn new(flows: Flows, live: LiveClient, site: Site) -> Self {
        Self { services: Arc::new(Services::new(flows, live, site)) }
    }

    async fn reached_by(&self, target: Target, request: Request<Incoming>) -> Response<Body> {
        match target {
            Target::Control => control::answer(&self.services, request).await,
            Target::Signed => match self.signer(request.uri()).await {
                Err(refused) => answer::refused(refused),
                Ok(Some(envd)) => enter(&envd, request).await,
                Ok(None) => {
                    answer::error(401, "the signature fits no sandbox that runs on this server")
                }
            },
            Target::Token(token) => {
                match self.services.with_token(|of| token::is_same(&token, of)).await {
                    Err(refused) => answer::refused(refused),
                    Ok(Some(envd)) => enter(&envd, request).await,
                    Ok(None) => answer::not_found("unknown"),
                }
            }
            Target::Sandbox { id, port } => match self.reached(&id, port, &request).await {
                Err(refused) => answer::refused(refused),
                Ok(None) => answer::not_found(&id),
                Ok(Some(envd)) if port == ENVD_PORT => enter(&envd, request).await,
                // What anybody may reach takes no token that could end.
                Ok(Some(envd)) if envd.guest.facts.traffic.is_none() => {
                    port::answer(&envd, port, request).await
                }
                Ok(Some(envd)) => {
                    revocable::while_open(&envd.guest, port::answer(&envd, port, request)).await
                }
            },
        }
    }

    /// The sandbox whose token signed a URL that names none.
    async fn signer(&self, uri: &Uri) -> Result<Option<Arc<Envd>>, Error> {
        let signs = |token: &str| {
            ["read", "write"].iter().any(|operation| is_signed(uri, operation, token) != Ok(false))
        };
        self.services.with_token(signs).await
    }

    /// The running sandbox of this id; one that is paused and waits for requests is resumed by them. Whether it runs is no
    /// such request. One that another process holds is refused.
    async fn reached(
        &self,
        id: &str,
        port: u16,
        request: &Request<Incoming>,
    ) -> Result<Option<Arc<Envd>>, Error> {
        let Ok(id) = LiveId::parse(id) else { return Ok(None) };
        let lives_on = AwaitAlive { patience: CREATE_PATIENCE };
        if let Some(envd) = self.services.envd(&id).await?
            && envd.guest.ask(lives_on).await.unwrap_or(false)
        {
            return Ok(Some(envd));
        }
        let lives = &self.services.live;
        if let Some(knock) = knock(port, request)
            && lives.ask(WakeSandbox { id: id.clone(), knock }).await?.is_some()
            && let Some(envd) = self.services.envd(&id).await?
        {
            return Ok(Some(envd));
        }
        // One that runs elsewhere is not said to be gone.
        lives.ask(RefuseForeign { id }).await.map(|()| None)
    }
}

/// A request to envd, which goes on as long as the sandbox's token is good.
async fn enter(envd: &Arc<Envd>, request: Request<Incoming>) -> Response<Body> {
    revocable::while_open(&envd.guest, envd::answer(envd, request)).await
}
