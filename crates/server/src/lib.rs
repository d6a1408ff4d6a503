//! The HTTP API. A request passes, in this order: route, key, role, body limit, JSON, schema, type;
//! then one call into `flows` (writes) or the ledger's read side. Nothing is written before all of
//! that held, and **no handler writes a row itself**.
//!
//! [`routes::ROUTES`] is the whole surface: the router, the permission matrix and the OpenAPI
//! document are made from it, so none of them can say something else.

mod answer;
mod call;
mod handlers;
pub mod openapi;
pub mod routes;
mod serve;
mod stream;

pub use serve::{Auth, Server, ServerError};

/// Bytes of a request body. Recipes are at most 256 KiB and forms are written by people; files go
/// in as artifacts or host directories, never in a request.
pub const MAX_BODY_BYTES: usize = 1024 * 1024;
