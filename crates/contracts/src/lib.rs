//! The contract: what crosses a boundary of Cofferdam, and nothing else. No IO, no async, no clock.
//!
//! Every boundary parses into these types in the order ingress -> row load -> step output ->
//! egress; unknown fields are refused everywhere.
//!
//! # Floors
//! A line imports only from those below it; what imports each other in a circle stands on one line.
//! ```text
//! reply
//! consent plan::agent plan_text policy::entries
//! lint
//! plan
//! plan::draft plan::groups plan::late
//! plan::render pipeline
//! plan::task_config
//! plan::fault
//! dispatch::end patch::receipt recipe::check trigger webhook work
//! graph
//! recipe::pipeline start_condition
//! late
//! dispatch recipe::task_texts recipe_book run shell shell::argv template terms
//! life patch::receipt_text project recipe shell::words snapshot tally template_build timeout
//! agent_plan config dispatch::record floor gate_spec live plan_text::agent profile retry_spec session step
//! artifact_glob image_reference
//! cache link sandbox
//! gate patch::repo run_file
//! live_network model patch::build rollback sandbox::input schedule task_outputs
//! patch patch::mail patch::raw policy proof schema secret tree_change wipe
//! artifact artifact_spec canonical delegation egress input key limit wipe_subject ops output patch::apply
//!    object patch::commit patch::path retention run_name service shell::scan start_ask start_spec test_report
//!    toolchain tree_manifest tree_upload usage
//! address agent_report duration error grant health id instant enum_names patch::diff patch::object printable
//!    quota shell::quote shell::reader user yaml
//! form own_schema
//! ```

pub mod address;
pub mod agent_plan;
pub mod agent_report;
pub mod artifact;
pub mod artifact_glob;
pub mod artifact_spec;
pub mod cache;
pub mod canonical;
pub mod config;
pub mod consent;
pub mod delegation;
pub mod dispatch;
pub mod duration;
pub mod egress;
mod enum_names;
pub mod error;
pub mod floor;
pub mod form;
pub mod gate;
pub mod gate_spec;
mod grant;
pub mod graph;
pub mod health;
pub mod id;
pub mod image_reference;
pub mod input;
pub mod instant;
pub mod key;
pub mod late;
pub mod life;
pub mod limit;
pub mod link;
pub mod lint;
pub mod live;
pub mod live_network;
pub mod model;
pub mod object;
pub mod ops;
pub mod output;
mod own_schema;
pub mod patch;
pub mod pipeline;
pub mod plan;
pub mod plan_text;
pub mod policy;
pub mod printable;
pub mod profile;
pub mod project;
pub mod proof;
pub mod quota;
pub mod recipe;
pub mod recipe_book;
pub mod reply;
pub mod retention;
pub mod retry_spec;
pub mod rollback;
pub mod run;
pub mod run_file;
pub mod run_name;
pub mod sandbox;
pub mod schedule;
pub mod schema;
pub mod secret;
pub mod service;
pub mod session;
pub mod shell;
pub mod snapshot;
pub mod start_ask;
pub mod start_condition;
pub mod start_spec;
pub mod step;
pub mod tally;
pub mod task_outputs;
pub mod template;
pub mod template_build;
pub mod terms;
pub mod test_report;
pub mod timeout;
pub mod toolchain;
pub mod tree_change;
pub mod tree_manifest;
pub mod tree_upload;
pub mod trigger;
pub mod usage;
pub mod user;
pub mod webhook;
pub mod wipe;
pub mod wipe_subject;
pub mod work;
pub mod yaml;
