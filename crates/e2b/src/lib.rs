//! E2B's API, beside ours at the same address: what the clients of E2B send, decided request by request.
//!
//! ```text
//! Host PORT-ID.domain, or E2b-Sandbox-Id --> a sandbox: 49983 = envd (process, filesystem, files), other = its own port
//! /sandboxes, /v2/sandboxes, /health ...  --> the control plane: `X-API-Key`
//! /files?signature=                       --> envd of the sandbox whose token signed it
//! X-Access-Token alone                    --> envd of the sandbox whose token it is
//! ```
//! **A sandbox is reached by its id alone only on its own ports; envd asks for its token.** What we cannot enforce is a
//! 400 that says so.
//!
//! **The table `routes` is the whole surface**: the router, the check of permissions, the OpenAPI documents and `docs/reference/e2b.md` are
//! made from it. A new endpoint is a row there, and a function in the file that is named by what it does.
//!
//! # Floors
//! A line imports only from those below it; what imports each other in a circle stands on one line.
//! ```text
//! api
//! dispatch::control dispatch::envd target
//! find openapi
//! routes
//! envd::files::download envd::files::upload parameters
//! envd::files::transfer sandbox::create template::detail template::tag_groups
//! envd::files::access sandbox::connect sandbox::detail sandbox::fork sandbox::kill sandbox::list
//!    sandbox::logs sandbox::metrics sandbox::network sandbox::pause sandbox::resume sandbox::snapshots
//!    sandbox::timeout template::alias template::delete template::files template::list template::publish
//!    template::tags
//! envd::filesystem::rename envd::filesystem::watch envd::process::connect envd::process::input
//!    envd::process::start route sandbox::answers sandbox::refusals template::build template::build_logs
//!    template::build_status template::create template::names
//! call caller dispatch::port envd::environment envd::files::signature envd::filesystem::list
//!    envd::filesystem::make_dir envd::filesystem::remove envd::filesystem::stat
//!    envd::process::command_notes envd::process::follow envd::process::list envd::process::select
//!    envd::process::signal envd::process::terminal envd::usage template::upload
//! connect::message connect::reply envd::account envd::call envd::state::processes envd::token services
//! connect::content_type envd::entry envd::state
//! connect::frames connect::protobuf envd::files::gzip envd::paths envd::state::process
//! body connect::fault connect::json_schema revocable template::build_names template::log_entry
//! answer connect connect::pieces connect::schema dispatch domain envd envd::files envd::files::form
//!    envd::filesystem envd::filesystem::one_path envd::process envd::state::watcher headers levels params
//!    query sandbox sandbox::bodies template template::links
//! ```

mod answer;
mod api;
mod body;
mod call;
mod caller;
mod connect;
mod dispatch;
mod domain;
mod envd;
mod find;
mod headers;
mod levels;
mod openapi;
mod parameters;
mod params;
mod query;
mod revocable;
mod route;
mod routes;
mod sandbox;
mod services;
mod target;
mod template;

pub use api::E2b;
pub use openapi::{document, permissions};
pub use route::{Access, Route, Surface};
pub use routes::ROUTES;
