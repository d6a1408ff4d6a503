//! Routes of templates, their builds and their tags.

use axum::http::request::Parts;

use super::control::{Asking, Outcome};
use super::{build_logs, builds, kept, shape, tag_views, tags, template_lists, templates, uploads};

pub(super) async fn routed(call: Asking<'_>, parts: &Parts, names: &[&str]) -> Outcome {
    match (parts.method.as_str(), names) {
        ("GET", ["templates"]) => templates::list(call).await,
        ("GET", ["v2", "templates"]) => template_lists::pages(call).await,
        ("GET", ["default-templates"]) => template_lists::defaults(call).await,
        ("GET", ["templates", "aliases", alias]) => templates::alias(call, alias).await,
        ("POST", ["v3", "templates"]) => builds::open(call).await,
        ("POST", ["v2", "templates", id, "builds", build]) => builds::start(call, id, build).await,
        ("GET", ["templates", id, "builds", build, "status"]) => {
            builds::status(call, id, build).await
        }
        ("GET", ["templates", id, "builds", build, "logs"]) => {
            build_logs::logs(call, id, build).await
        }
        ("GET", ["templates", id, "files", hash]) => {
            uploads::link(call, id, hash, &parts.headers).await
        }
        ("POST", ["templates", "tags"]) => tags::assign(call).await,
        ("DELETE", ["templates", "tags"]) => tags::remove(call).await,
        ("GET", ["templates", id, "tags"]) => tags::list(call, id).await,
        ("GET", ["templates", id, "tags", "count"]) => tag_views::count(call, id).await,
        ("GET", ["templates", id, "tags", "exists"]) => tag_views::exists(call, id).await,
        ("GET", ["templates", id, "tags", "groups"]) => tag_views::groups(call, id).await,
        ("GET", ["templates", id, "tags", tag, "assignments"]) => {
            tag_views::assignments(call, id, tag).await
        }
        ("GET", ["templates", id]) => template_lists::detail(call, id).await,
        ("DELETE", ["templates", id]) => kept::delete(call, id).await,
        ("PATCH", ["v2", "templates", id] | ["templates", id]) => templates::change(call, id).await,
        (
            "POST",
            ["templates"] | ["v2", "templates"] | ["templates", _] | ["templates", _, "builds", _],
        ) => Err(shape::error(400, templates::OLDER)),
        _ => Err(shape::error(400, templates::UNCHANGED)),
    }
}
