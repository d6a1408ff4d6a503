//! Routes of templates, their builds and their tags.

pub(crate) mod alias;
pub(crate) mod build;
pub(crate) mod build_logs;
pub(crate) mod build_names;
pub(crate) mod build_status;
pub(crate) mod create;
pub(crate) mod delete;
pub(crate) mod detail;
pub(crate) mod files;
pub(crate) mod links;
pub(crate) mod list;
pub(crate) mod log_entry;
pub(crate) mod names;
pub(crate) mod publish;
pub(crate) mod tag_groups;
pub(crate) mod tags;
pub(crate) mod upload;
