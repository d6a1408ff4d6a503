//! What every API at the address of a server shares: the listeners and their bounds, TLS, and what is decided of a request from
//! its head alone. **It knows no key, no table and no database**: an [`Api`] answers, and a [`Probe`] says how the server is.
//!
//! ```text
//! connection -> a place -> TLS -> head -> a name of an API's own? -> that API
//!                                      -> host and origin         -> the first API that claims the request
//! ```
//!
//! # Floors
//! A line imports only from those below it; what imports each other in a circle stands on one line.
//! ```text
//! serve
//! listen lookout
//! api
//! public
//! bound door paced refuse tls
//! ```

mod api;
mod bound;
mod door;
mod listen;
mod lookout;
mod paced;
mod public;
mod refuse;
mod serve;
mod tls;

pub use api::{Api, Label, Probe, Reply, Site};
pub use bound::Place;
pub use door::{HostName, is_json};
pub use listen::Local;
pub use public::PublicUrl;
pub use refuse::{refuse, with_json};
pub use serve::{ANSWER_PATIENCE, Auth, BODY_PATIENCE, Doors, Listeners, Server, ServerError};
pub use tls::{Tls, TlsError};
