//! What sandboxes are made of: templates of this host, and those that tenants built.

pub(crate) mod build;
pub(crate) mod build_images;
pub(crate) mod build_layers;
pub(crate) mod build_log;
pub(crate) mod build_steps;
pub(crate) mod builds;
pub(crate) mod host;
pub(crate) mod program;
pub(crate) mod resolved_template;
pub(crate) mod tags;
pub(crate) mod templates;
pub(crate) mod upload_digest;
pub(crate) mod uploads;
