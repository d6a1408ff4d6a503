//! Files of a COPY step, sent to their link.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::Response;
use cofferdam_contracts::template_build::MAX_UPLOAD_BYTES;
use cofferdam_http::BODY_PATIENCE;
use cofferdam_live::{ByteSink, SendUpload};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;

use crate::params::Params;
use crate::services::Services;
use crate::template::links::{AT_ONCE, ArchivePath, LIFE, Link};
use crate::{answer, body, query};

/// How long one waits for a slot.
const PLACE_PATIENCE: Duration = Duration::from_secs(60);

/// What is sent to a link.
pub(crate) struct UploadCall {
    pub services: Arc<Services>,
    pub params: Params,
    pub query: String,
    pub body: Incoming,
}

/// `PUT` to a link.
pub(crate) async fn take(call: UploadCall) -> Response<Body> {
    let UploadCall { services, params, query, mut body } = call;
    let secret = query::value(&query, "signature").unwrap_or_default();
    let path = ArchivePath { template: params.get("id"), hash: params.get("hash") };
    let Some(link) = services.links.find(&secret, path) else {
        return answer::error(
            403,
            "the upload link is unknown or has expired: ask for the next one",
        );
    };
    match services.flows.ledger.keys().is_revoked(&link.key).await {
        Ok(false) => {}
        Ok(true) => {
            return answer::error(403, "the key that asked for this upload link is revoked");
        }
        Err(error) => return answer::refused(error.into()),
    }
    let Some(_place) = services.links.places.take(&link.tenant, PLACE_PATIENCE).await else {
        return answer::error(
            429,
            format!("{AT_ONCE} uploads of this tenant are under way; try again"),
        );
    };
    match tokio::time::timeout(LIFE, received(&services, link, &mut body)).await {
        Ok(Ok(())) => answer::empty(200),
        Ok(Err(fault)) => {
            body::drain(&mut body).await;
            *fault
        }
        Err(_) => answer::error(408, "the upload took longer than its link is good for"),
    }
}

/// Has an archive kept as it comes.
async fn received(
    services: &Services,
    link: Link,
    body: &mut Incoming,
) -> Result<(), Box<Response<Body>>> {
    let Link { tenant, key, template, hash, .. } = link;
    let upload = SendUpload { tenant, key_id: key, template, hash };
    let sink = services.live.ask(upload).await;
    let ByteSink { pieces, end } = sink.map_err(|error| Box::new(answer::refused(error)))?;
    let mut size = 0u64;
    let fault = loop {
        match tokio::time::timeout(BODY_PATIENCE, body.frame()).await {
            Err(_) => break Some(answer::error(408, "the upload did not go on")),
            Ok(Some(Err(_))) => break Some(answer::error(400, "the upload broke off")),
            Ok(None) => break None,
            Ok(Some(Ok(frame))) => {
                let Ok(bytes) = frame.into_data() else { continue };
                size = size.saturating_add(u64::try_from(bytes.len()).unwrap_or(u64::MAX));
                if size > MAX_UPLOAD_BYTES {
                    let why = format!("an upload has at most {MAX_UPLOAD_BYTES} bytes");
                    break Some(answer::error(413, why));
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
    let taken = taken.map_err(|_| Box::new(answer::error(503, "the server stops; try again")))?;
    taken.map_err(|error| Box::new(answer::refused(error)))
}
