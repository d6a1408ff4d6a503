//! The sandbox whose token signed a link that names none.

use std::sync::Arc;

use axum::http::Uri;
use cofferdam_flows::Error;
use cofferdam_live::AllGuests;

use crate::envd::files::signature::is_signed;
use crate::envd::state::Envd;
use crate::services::Services;

/// The sandbox whose token signed a URL that names none.
pub(crate) async fn signer(services: &Services, uri: &Uri) -> Result<Option<Arc<Envd>>, Error> {
    let fits = |token: &str| {
        ["read", "write"].iter().any(|operation| is_signed(uri, operation, token) != Ok(false))
    };
    let all = services.live.ask(AllGuests).await?.into_iter();
    match all.filter(|guest| !guest.is_revoked()).find(|guest| fits(&guest.facts.token)) {
        Some(guest) => services.envd(&guest.facts.id).await,
        None => Ok(None),
    }
}
