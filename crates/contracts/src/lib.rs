//! The contract: what crosses a boundary of Cofferdam, and nothing else. No IO, no async, no clock.
//!
//! Every boundary parses into these types in the order ingress -> row load -> step output ->
//! egress; unknown fields are refused everywhere.

pub mod address;
pub mod agent_plan;
pub mod artifact;
pub mod cache;
pub mod canonical;
pub mod config;
pub mod consent;
pub mod delegation;
pub mod dispatch;
pub mod duration;
pub mod egress;
pub mod error;
pub mod gate;
pub mod gate_spec;
mod grant;
pub mod health;
pub mod id;
pub mod instant;
pub mod key;
pub mod limit;
pub mod link;
pub mod live;
pub mod looked;
pub mod model;
mod named;
pub mod ops;
pub mod patch;
pub mod plan;
pub mod plan_text;
pub mod policy;
pub mod printable;
pub mod profile;
pub mod proof;
pub mod recipe;
pub mod recipe_book;
pub mod reply;
pub mod run;
pub mod sandbox;
pub mod schema;
pub mod secret;
pub mod service;
pub mod session;
pub mod shell;
pub mod snapshot;
pub mod step;
pub mod tally;
pub mod template;
pub mod terms;
pub mod timeout;
pub mod tree_change;
pub mod webhook;
pub mod wipe;
pub mod work;
pub mod yaml;
