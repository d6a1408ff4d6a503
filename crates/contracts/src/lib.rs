//! The contract: what crosses a boundary of Cofferdam, and nothing else. No IO, no async, no clock.
//!
//! Every boundary parses into these types in the order ingress -> row load -> step output ->
//! egress; unknown fields are refused everywhere.

pub mod canonical;
pub mod id;
pub mod sandbox;
