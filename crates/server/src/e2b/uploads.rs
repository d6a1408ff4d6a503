//! Files for the COPY steps of a build: a link for one archive, which needs no key, and what is sent to it.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderMap, Response, header};
use cofferdam_ambient::clock::Stopwatch;
use cofferdam_ambient::random::secret_hex;
use cofferdam_contracts::id::{Digest, TemplateId, TenantId};
use cofferdam_contracts::template_build::MAX_UPLOAD_BYTES;
use cofferdam_flows::places::TenantPlaces;
use cofferdam_live::{ByteSink, HasUpload, SendUpload};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use serde_json::json;

use super::builds::refused;
use super::control::{Asking, Outcome};
use super::{Front, shape, templates};
use crate::serve::BODY_PATIENCE;

/// How long a link may be used: as long as clients give an upload.
const LIFE: Duration = Duration::from_secs(3_600);
/// Links of one tenant; the oldest goes for the next one. A build has at most as many steps.
const MAX_LINKS: usize = 512;
/// Uploads of one tenant at once: its quota is asked before each, and what is under way is not counted yet. Others wait.
const AT_ONCE: usize = 4;
/// Bytes of a link's secret.
const SECRET_BYTES: usize = 20;
/// How long one waits for a place.
const PLACE_PATIENCE: Duration = Duration::from_secs(60);

/// Where one archive may be sent.
#[derive(Debug, Clone)]
struct Link {
    tenant: TenantId,
    /// The key that asked for it: a link ends with its key.
    key: String,
    template: TemplateId,
    hash: Digest,
    since: Stopwatch,
}

/// The path of an archive, as a request names it.
#[derive(Debug, Clone, Copy)]
pub(super) struct ArchivePath<'a> {
    pub template: &'a str,
    /// What the client calls the archive.
    pub hash: &'a str,
}

/// Links of this process, by their secret. A server that restarts has none: the client asks for the next one.
#[derive(Debug)]
pub(crate) struct Links {
    all: Mutex<HashMap<String, Link>>,
    /// Places of each tenant that sent something.
    places: TenantPlaces,
}

impl Default for Links {
    fn default() -> Self {
        Self { all: Mutex::default(), places: TenantPlaces::of(AT_ONCE) }
    }
}

impl Links {
    fn all(&self) -> MutexGuard<'_, HashMap<String, Link>> {
        // A poisoned lock only means that somebody panicked beside it; the map is whole.
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, link: Link) -> String {
        let mut all = self.all();
        all.retain(|_, one| one.since.elapsed() < LIFE);
        let own = all.iter().filter(|(_, one)| one.tenant == link.tenant);
        let (count, oldest) = own.fold((0usize, None::<(&String, &Link)>), |(count, old), one| {
            let older = old.filter(|old| old.1.since.elapsed() >= one.1.since.elapsed());
            (count.saturating_add(1), older.or(Some(one)))
        });
        let over = oldest.filter(|_| count >= MAX_LINKS).map(|(secret, _)| secret.clone());
        if let Some(secret) = over {
            all.remove(&secret);
        }
        let secret = secret_hex(SECRET_BYTES);
        all.insert(secret.clone(), link);
        secret
    }

    /// The link of this secret, for this path.
    fn find(&self, secret: &str, path: ArchivePath<'_>) -> Option<Link> {
        let found = self.all().get(secret).cloned()?;
        let fits = found.template.as_str() == path.template && found.hash.as_str() == path.hash;
        (fits && found.since.elapsed() < LIFE).then_some(found)
    }
}

/// The address that the operator said; without one, `http` or `https`, then how the caller named this server.
fn origin(front: &Front, headers: &HeaderMap) -> String {
    if let Some(said) = &front.shared.said_url {
        return said.clone();
    }
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let host = text(header::HOST.as_str()).unwrap_or("localhost");
    // Behind a proxy that ends TLS it is the proxy's word, for this caller alone.
    let is_tls = front.shared.tls || text("x-forwarded-proto") == Some("https");
    format!("{}://{host}", if is_tls { "https" } else { "http" })
}

/// `GET /templates/{id}/files/{hash}`.
pub(super) async fn link(
    call: Asking<'_>,
    template: &str,
    hash: &str,
    headers: &HeaderMap,
) -> Outcome {
    let template = TemplateId::parse(template).map_err(|_| templates::missing(template))?;
    let hash = Digest::parse(hash)
        .map_err(|_| refused("the files' hash is not a SHA-256 in lower-case hex"))?;
    let (flows, lives) = (&call.front.shared.flows, &call.front.shared.live);
    let known = templates::built(flows, &call.who, template.as_str()).await?;
    if known.is_none_or(|(id, _)| id != template) {
        return Err(templates::missing(template.as_str()));
    }
    let tenant = call.who.tenant.clone();
    let upload =
        HasUpload { tenant: tenant.clone(), template: template.clone(), hash: hash.clone() };
    let present = lives.ask(upload).await.map_err(shape::refused)?;
    let path = format!("/templates/{template}/files/{hash}");
    let key = call.who.key_id.clone();
    let link = Link { tenant, key, template, hash, since: Stopwatch::start() };
    let secret = call.front.links.add(link);
    let url = format!("{}{path}?signature={secret}", origin(call.front, headers));
    Ok(shape::json_of(201, &json!({"present": present, "url": url})))
}

/// `PUT` to a link.
pub(super) async fn take(
    front: &Front,
    path: ArchivePath<'_>,
    query: &str,
    mut body: Incoming,
) -> Response<Body> {
    let secret = shape::query(query, "signature").unwrap_or_default();
    let Some(link) = front.links.find(&secret, path) else {
        return shape::error(
            403,
            "the upload link is unknown or has expired: ask for the next one",
        );
    };
    match front.shared.flows.ledger.keys().is_revoked(&link.key).await {
        Ok(false) => {}
        Ok(true) => return shape::error(403, "the key that asked for this upload link is revoked"),
        Err(error) => return shape::refused(error.into()),
    }
    let Some(_place) = front.links.places.take(&link.tenant, PLACE_PATIENCE).await else {
        return shape::error(
            429,
            format!("{AT_ONCE} uploads of this tenant are under way; try again"),
        );
    };
    match tokio::time::timeout(LIFE, received(front, link, &mut body)).await {
        Ok(Ok(())) => shape::empty(200),
        Ok(Err(fault)) => {
            shape::drain(&mut body).await;
            *fault
        }
        Err(_) => shape::error(408, "the upload took longer than its link is good for"),
    }
}

/// Has an archive kept as it comes.
async fn received(
    front: &Front,
    link: Link,
    body: &mut Incoming,
) -> Result<(), Box<Response<Body>>> {
    let Link { tenant, key, template, hash, .. } = link;
    let upload = SendUpload { tenant, key_id: key, template, hash };
    let sink = front.shared.live.ask(upload).await;
    let ByteSink { pieces, end } = sink.map_err(|error| Box::new(shape::refused(error)))?;
    let mut size = 0u64;
    let fault = loop {
        match tokio::time::timeout(BODY_PATIENCE, body.frame()).await {
            Err(_) => break Some(shape::error(408, "the upload did not go on")),
            Ok(Some(Err(_))) => break Some(shape::error(400, "the upload broke off")),
            Ok(None) => break None,
            Ok(Some(Ok(frame))) => {
                let Ok(bytes) = frame.into_data() else { continue };
                size = size.saturating_add(u64::try_from(bytes.len()).unwrap_or(u64::MAX));
                if size > MAX_UPLOAD_BYTES {
                    let why = format!("an upload has at most {MAX_UPLOAD_BYTES} bytes");
                    break Some(shape::error(413, why));
                }
                // Where nobody takes it, the end says why.
                if pieces.send(Some(bytes)).await.is_err() {
                    break None;
                }
            }
        }
    };
    if let Some(fault) = fault {
        return Err(Box::new(fault));
    }
    let _ = pieces.send(None).await;
    drop(pieces);
    let taken = end.await;
    let taken = taken.map_err(|_| Box::new(shape::error(503, "the server stops; try again")))?;
    taken.map_err(|error| Box::new(shape::refused(error)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(tenant: &str) -> Link {
        Link {
            tenant: TenantId::parse(tenant).unwrap(),
            key: "k".to_owned(),
            template: TemplateId::parse(&"t".repeat(20)).unwrap(),
            hash: Digest::parse(&"a".repeat(64)).unwrap(),
            since: Stopwatch::start(),
        }
    }

    #[test]
    fn a_link_is_for_one_archive_and_a_tenant_has_so_many() {
        let links = Links::default();
        let (template, hash) = ("t".repeat(20), "a".repeat(64));
        let first = links.add(link("ann"));
        let path = ArchivePath { template: &template, hash: &hash };
        assert!(links.find(&first, path).is_some());
        let other = "b".repeat(64);
        assert!(links.find(&first, ArchivePath { hash: &other, ..path }).is_none());
        let other = "u".repeat(20);
        assert!(links.find(&first, ArchivePath { template: &other, ..path }).is_none());
        assert!(links.find("", path).is_none());
        let other = links.add(link("bob"));
        for _ in 0..MAX_LINKS {
            links.add(link("ann"));
        }
        assert!(links.find(&first, path).is_none());
        assert!(links.find(&other, path).is_some());
        assert_eq!(links.all().len(), MAX_LINKS + 1);
    }
}
