//! The class `remote`: a sandbox that a service elsewhere holds, which speaks the E2B API.
//!
//! ```text
//! POST /sandboxes (a term, no internet, our names) -> our agent by /files -> started by process.Process/Start
//!   its stdin (SendInput) and stdout (the answer's events) <-> socket pair <-> the agent's HTTP/2    see `stream`
//! wipe: DELETE, GET until 404, none listed under our name                                            see `wipe`
//! ```
//! A command without services and names goes on while nobody listens: the worker that lost the stream, or
//! that takes the task over, goes to the same agent and reads on (`reattach`).
//!
//! Commands, files, phases and services are the agent's, as in every class. What the service enforces
//! and nobody here can see is refused by the field's name, or stands in the record as the service's word.
//!
//! **Nobody is given it who did not ask**: a worker whose runtime is `remote` has it alone, every other one
//! speaks to no provider. **The key is sent to the API and nowhere else, and is never printed.**

mod api;
mod envd;
mod frames;
#[cfg(test)]
mod fuzz;
mod operations;
mod provider;
mod reattach;
mod refuse;
mod start;
mod stream;
mod wipe;

pub(crate) use api::RemoteError;
pub(crate) use operations::CLASS;
pub(crate) use provider::{NAME, detect};
use refuse::refuse;
pub(crate) use start::attach;
use start::start;

/// What a record says of a sandbox whose host is not this one.
pub(crate) const ELSEWHERE: &str = "remote";

/// What nobody here can see.
pub(crate) fn weak() -> Vec<String> {
    [
        "remote: how strongly the provider isolates, and that nothing but the proxy leads out, is its word",
        "remote: the agent is not the first process; the task has root beside it, can end it, and so the \
         sandbox",
        "remote: processor, memory, processes and disk are the template's, and their use is not counted here",
    ]
    .map(str::to_owned)
    .into()
}
