//! What answers at the address of a server, and what it knows of that address.

use std::fmt::Debug;
use std::pin::Pin;
use std::sync::Arc;

use axum::body::Body;
use axum::http::{HeaderMap, Request, Response, Uri};
use hyper::body::Incoming;

use crate::public::PublicUrl;
use crate::request_guard::HostName;

/// An answer that is on its way.
pub type Reply<'a> = Pin<Box<dyn Future<Output = Response<Body>> + Send + 'a>>;

/// An API at the address of a server. Several are asked in their order; the first that claims a request answers it.
pub trait Api: Debug + Send + Sync + 'static {
    /// Whether a name below one of this server's is this API's, by its first label. Such a name is an origin of its own: its
    /// requests pass by the checks of host and origin, and reach this API alone, with [`Label`] among their extensions. Pure.
    fn has_label(&self, label: &str) -> bool;

    /// Whether a request whose host and origin were checked is this API's. Pure.
    fn claims(&self, uri: &Uri, headers: &HeaderMap) -> bool;

    /// Answers one request.
    fn answer(self: Arc<Self>, request: Request<Incoming>) -> Reply<'static>;
}

/// The first label of the name that a request gives this server, where that lies below one of the server's: `3000-ID` of
/// `3000-ID.localhost`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Label(pub String);

/// A server's address, as its APIs speak of it.
#[derive(Debug, Clone)]
pub struct Site {
    /// Whether a caller without a key is served.
    pub no_auth: bool,
    /// Names that requests may give this server, besides its addresses.
    pub names: Vec<HostName>,
    /// The address that the operator said, for people and programs elsewhere.
    pub public_url: Option<PublicUrl>,
    /// What reply links begin with: that address, or where the server listens.
    pub links: String,
    /// Whether its address speaks TLS.
    pub tls: bool,
}

/// What answers `GET /healthz` on the thread that accepts connections, which nothing else keeps busy.
pub trait Probe: Send + Sync {
    /// Says how this server is.
    fn answer(&self) -> Reply<'_>;
}
