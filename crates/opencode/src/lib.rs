//! The client of OpenCode's daemon, version [`VERSION`].
//!
//! ```text
//! ids       op_key -> ids of session, message and part      (pure)
//! request   what may be sent: it has no word for a child    (the only module that serializes)
//! client    one connection a call, bounded in bytes and time
//! reply     what the daemon says, parsed                    (the only module that reads `parentID`)
//! readback  what became of a prompt -> send, record, wait   (pure)
//! events    the daemon's event stream
//! stall     events + clock -> moving, or a diagnosis        (pure)
//! config    the daemon's configuration and environment      (pure)
//! ```
//!
//! The caller stores a prompt's ids before it sends, and reads back before every send: [`Client::read_back`].
//!
//! # Floors
//! A line imports only from those below it; what imports each other in a circle stands on one line.
//! ```text
//! stall
//! client events
//! config readback
//! reply request
//! error ids
//! ```

mod client;
mod config;
mod error;
mod events;
mod ids;
mod readback;
mod reply;
mod request;
mod stall;

pub use client::{Address, Bounds, Client, Connection, Dial, DialFuture};
pub use config::{Settings, TOOL_SHELL, configuration, environment, tool_shell};
pub use error::{Error, TurnError};
pub use events::{Event, EventStream};
pub use ids::{Ids, SessionId};
pub use readback::{PromptProgress, ReadbackAction, read_back};
pub use reply::{Answer, PendingQuestion, Reply};
pub use request::{Agent, Model, Prompt};
pub use stall::{Detector, Diagnosis, OC_TIMEOUT, Patience, TimeoutStep, Verdict};

/// The daemon's version that the contract suite holds; another one is refused by [`Client::check_version`].
pub const VERSION: &str = "1.18.33";
