//! What sandboxes are specified by: plain data and the checks of a single field. Pure.
//!
//! ```text
//! HostFacts (what a host has) + request --`plan`--> Plan (everything, decided) | PlanError (the field)
//! ```
//! **No decision about a class is made here**: the classes above answer for themselves.

pub(crate) mod cache;
pub(crate) mod class;
pub(crate) mod command;
pub(crate) mod environment;
pub(crate) mod facts;
pub(crate) mod input;
pub(crate) mod machine;
pub(crate) mod plan;
pub(crate) mod provider;
pub(crate) mod refuse;
pub(crate) mod service;
pub(crate) mod users;
