//! What every API at the address of a server shares: the listeners and their bounds, TLS, and what is decided of a request from
//! its head alone. **It knows no key, no table and no database**: an [`Api`] answers, and a [`Probe`] says how the server is.
//!
//! ```text
//! connection -> a slot -> TLS -> head -> a name of an API's own? -> that API
//!                                     -> host and origin         -> the first API that claims the request
//! ```
//!
//! # Floors
//! A line imports only from those below it; what imports each other in a circle stands on one line.
//! ```text
//! serve
//! listen health_listener
//! api
//! public
//! byte_range connection_limit request_guard stall_timeout refuse tls
//! ```

mod api;
mod byte_range;
mod connection_limit;
mod health_listener;
mod listen;
mod public;
mod refuse;
mod request_guard;
mod serve;
mod stall_timeout;
mod tls;

pub use api::{Api, Label, Probe, Reply, Site};
pub use byte_range::ByteRange;
pub use connection_limit::ConnectionPermit;
pub use listen::Local;
pub use public::PublicUrl;
pub use refuse::{refuse, with_json};
pub use request_guard::{HostName, is_json};
pub use serve::{
    ANSWER_PATIENCE, Auth, BODY_PATIENCE, Listeners, Server, ServerConfig, ServerError,
};
pub use tls::{Tls, TlsError};
