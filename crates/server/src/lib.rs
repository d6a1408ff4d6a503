//! The HTTP API. A request that `http` lets in passes, in this order: route, type of its body, key, role, body limit, JSON,
//! schema, type; then one call into `flows` (writes) or the ledger's read side. Nothing is written before all of that held, and
//! **no handler writes a row itself**.
//!
//! [`routes::ROUTES`] is the whole surface: the router, the permission matrix and the OpenAPI
//! document are made from it, so none of them can say something else.
//!
//! # Floors
//! A line imports only from those below it; what imports each other in a circle stands on one line.
//! ```text
//! openapi router
//! parameters probe responses
//! routes
//! handlers route stream
//! call
//! answer archive recipes
//! ```

mod answer;
mod archive;
mod call;
mod handlers;
pub mod openapi;
mod parameters;
mod probe;
pub mod recipes;
mod responses;
mod route;
mod router;
pub mod routes;
mod stream;

pub use probe::probe;
pub use route::Route;
pub use router::RouterApi;

/// Bytes of a request body. Recipes are at most 256 KiB and forms are written by people; files go
/// in as artifacts or host directories, never in a request.
pub const MAX_BODY_BYTES: usize = 1024 * 1024;
