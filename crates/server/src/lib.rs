//! The HTTP API. A request passes, in this order: a place for its connection, host, origin, route, type
//! of its body, key, role, body limit, JSON, schema, type; then one call into `flows` (writes) or the
//! ledger's read side. Nothing is written before all of that held, and **no handler writes a row itself**.
//!
//! [`routes::ROUTES`] is the whole surface: the router, the permission matrix and the OpenAPI
//! document are made from it, so none of them can say something else.
//!
//! # Floors
//! A line imports only from those below it; what imports each other in a circle stands on one line.
//! ```text
//! openapi
//! parameters responses
//! call door e2b handlers listen lookout public routes serve stream
//! answer bound paced recipes tls
//! ```

mod answer;
mod bound;
mod call;
mod door;
mod e2b;
mod handlers;
mod listen;
mod lookout;
pub mod openapi;
mod paced;
mod parameters;
mod public;
pub mod recipes;
mod responses;
pub mod routes;
mod serve;
mod stream;
mod tls;

pub use door::HostName;
pub use listen::Local;
pub use public::PublicUrl;
pub use serve::{Auth, Doors, Server, ServerError};
pub use tls::{Tls, TlsError};

/// Bytes of a request body. Recipes are at most 256 KiB and forms are written by people; files go
/// in as artifacts or host directories, never in a request.
pub const MAX_BODY_BYTES: usize = 1024 * 1024;
