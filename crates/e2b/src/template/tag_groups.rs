//! What is asked of the tags of a template. The record has the build that each tag names now, and none of those before.

use axum::body::Body;
use axum::http::Response;
use cofferdam_contracts::canonical::digest_bytes;
use cofferdam_contracts::id::TemplateId;
use cofferdam_contracts::template_build::tag;
use cofferdam_ledger::template_tags::TagView;
use schemars::JsonSchema;
use serde::Serialize;

use crate::answer::{self, bad_request, time};
use crate::call::{Call, Outcome};
use crate::query;
use crate::template::tags;

/// Tags of one page without `tagsLimit`: what clients ask for where their user says nothing.
pub(crate) const DEFAULT_PAGE: u8 = 25;

/// Tags of a template of the caller's tenant.
async fn all(call: &Call, template: &str) -> Result<(TemplateId, Vec<TagView>), Response<Body>> {
    let text = query::decoded(template).unwrap_or_default();
    let template = tags::known(&call.services, &call.who, &text).await?;
    let all = call.services.flows.ledger.builds().tags(&call.who.tenant, &template).await;
    Ok((template, all.map_err(|error| answer::refused(error.into()))?))
}

/// Answers `GET /templates/{id}/tags/count`: how many tags the template has.
pub(crate) async fn count(call: Call) -> Outcome {
    let template = &call.param("id");
    let (_, all) = all(&call, template).await?;
    Ok(answer::json_of(200, &TagCount { total: all.len() }))
}

/// Answers `GET /templates/{id}/tags/exists`: whether the template has the tag.
pub(crate) async fn exists(call: Call) -> Outcome {
    let template = &call.param("id");
    let asked = query::value(&call.query, "tag").ok_or_else(|| bad_request("tag is missing"))?;
    let asked = tag(&asked).map_err(bad_request)?;
    let (_, all) = all(&call, template).await?;
    let exists = all.iter().any(|one| one.tag == asked);
    Ok(answer::json_of(200, &TagPresence { exists, normalized_tag: asked }))
}

/// A tag and its build as one assignment.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct Assignment {
    assignment_id: String,
    build_id: String,
    assigned_at: String,
    build_created_at: String,
    build_finished_at: Option<String>,
}

impl Assignment {
    /// It has no id of its own on record: what makes it the only one gives its id.
    fn of(template: &TemplateId, one: &TagView) -> Self {
        let whole = format!("{template} {} {} {}", one.tag, one.build, one.assigned_ms);
        let digest = digest_bytes(whole.as_bytes());
        let hex = |from: usize, to: usize| digest.as_str().get(from..to).unwrap_or_default();
        Self {
            assignment_id: format!(
                "{}-{}-{}-{}-{}",
                hex(0, 8),
                hex(8, 12),
                hex(12, 16),
                hex(16, 20),
                hex(20, 32)
            ),
            build_id: one.build.to_string(),
            assigned_at: time(one.assigned_ms),
            build_created_at: time(one.created_ms),
            build_finished_at: one.ended_ms.map(time),
        }
    }
}

/// How many tags a template has.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct TagCount {
    total: usize,
}

/// Whether a template has a tag.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct TagPresence {
    exists: bool,
    normalized_tag: String,
}

/// Assignments of a tag: the one that holds.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Assignments {
    data: Vec<Assignment>,
    next_cursor: Option<String>,
}

/// Tags of a template, with their assignments.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct TagGroups {
    tags: Vec<TagGroup>,
    next_cursor: Option<String>,
}

/// A tag with its assignments.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct TagGroup {
    tag: String,
    assignments: [Assignment; 1],
    has_more: bool,
}

/// Answers `GET /templates/{id}/tags/{tag}/assignments`: the build that the tag names now.
pub(crate) async fn assignments(call: Call) -> Outcome {
    let template = &call.param("id");
    let asked = &call.param("tag");
    let asked = tag(&query::decoded(asked).unwrap_or_default()).map_err(bad_request)?;
    for (name, value) in query::pairs(&call.query) {
        match name {
            "limit" => drop(query::rows::<usize>(name, value).map_err(bad_request)?),
            // There is one page.
            "cursor" => return Err(bad_request("cursor is not of this list")),
            other => return Err(bad_request(format!("the query's {other} is not supported"))),
        }
    }
    let (template, all) = all(&call, template).await?;
    let own = all.iter().filter(|one| one.tag == asked);
    let data = own.map(|one| Assignment::of(&template, one)).collect();
    Ok(answer::json_of(200, &Assignments { data, next_cursor: None }))
}

/// Which groups a query asks for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Groups {
    limit: usize,
    after: Option<(i64, String)>,
    search: String,
    by_name: bool,
    falling: bool,
}

pub(crate) fn groups_of(query: &str) -> Result<Groups, String> {
    let mut asked = Groups {
        limit: DEFAULT_PAGE.into(),
        after: None,
        search: String::new(),
        by_name: false,
        falling: true,
    };
    for (name, value) in query::pairs(query) {
        let value = query::decoded(value).ok_or_else(|| format!("{name} is not UTF-8"))?;
        match name {
            // Each has one.
            "assignmentLimit" => drop(query::rows::<usize>(name, &value)?),
            "tagsLimit" => asked.limit = query::rows(name, &value)?,
            "tagsCursor" => {
                let token = value.split_once(' ');
                let token = token.and_then(|(at, tag)| Some((at.parse().ok()?, tag.to_owned())));
                asked.after = Some(token.ok_or("tagsCursor is not of this list")?);
            }
            "search" => asked.search = value.to_ascii_lowercase(),
            "sort" => {
                (asked.by_name, asked.falling) = match value.as_str() {
                    "latest_desc" => (false, true),
                    "latest_asc" => (false, false),
                    "name_desc" => (true, true),
                    "name_asc" => (true, false),
                    _ => return Err(format!("sort is {value:?}: latest or name, _asc or _desc")),
                }
            }
            other => return Err(format!("the query's {other} is not supported")),
        }
    }
    Ok(asked)
}

/// The tags of one page in their order, and the cursor of the next. Pure.
fn paged(mut all: Vec<TagView>, asked: &Groups) -> (Vec<TagView>, Option<String>) {
    let key = |at: i64, tag: &str| (if asked.by_name { 0 } else { at }, tag.to_owned());
    all.retain(|one| one.tag.contains(&asked.search));
    all.sort_by_key(|one| key(one.assigned_ms, &one.tag));
    if asked.falling {
        all.reverse();
    }
    if let Some((at, tag)) = &asked.after {
        let after = key(*at, tag);
        all.retain(|one| {
            let own = key(one.assigned_ms, &one.tag);
            if asked.falling { own < after } else { own > after }
        });
    }
    let more = query::cut(&mut all, asked.limit);
    let next = all.last().filter(|_| more).map(|one| format!("{} {}", one.assigned_ms, one.tag));
    (all, next)
}

/// Answers `GET /templates/{id}/tags/groups`: a page of tags, each with its one assignment.
pub(crate) async fn groups(call: Call) -> Outcome {
    let template = &call.param("id");
    let asked = groups_of(&call.query).map_err(bad_request)?;
    let (template, all) = all(&call, template).await?;
    let (all, next) = paged(all, &asked);
    let group = |one: &TagView| TagGroup {
        tag: one.tag.clone(),
        assignments: [Assignment::of(&template, one)],
        has_more: false,
    };
    let tags = all.iter().map(group).collect();
    Ok(answer::json_of(200, &TagGroups { tags, next_cursor: next }))
}

#[cfg(test)]
mod tests {
    use cofferdam_contracts::id::BuildId;

    use super::*;

    #[test]
    fn groups_of_tags_are_read_page_by_page_in_each_order() {
        let one = |tag: &str, assigned_ms: i64| TagView {
            tag: tag.to_owned(),
            build: BuildId::parse("00000000-0000-0000-0000-000000000000").unwrap(),
            assigned_ms,
            created_ms: 0,
            ended_ms: Some(1),
        };
        let all = [one("v1", 3), one("v2", 1), one("default", 3), one("stable", 2)];
        for (sort, wanted) in [
            ("latest_desc", ["v1", "default", "stable", "v2"]),
            ("latest_asc", ["v2", "stable", "default", "v1"]),
            ("name_asc", ["default", "stable", "v1", "v2"]),
            ("name_desc", ["v2", "v1", "stable", "default"]),
        ] {
            let mut asked = groups_of(&format!("tagsLimit=3&sort={sort}")).unwrap();
            let (mut found, next) = paged(all.to_vec(), &asked);
            let next = next.unwrap().replace(' ', "%20");
            asked.after = groups_of(&format!("tagsCursor={next}")).unwrap().after;
            let (rest, next) = paged(all.to_vec(), &asked);
            assert_eq!(next, None);
            found.extend(rest);
            let found: Vec<&str> = found.iter().map(|one| one.tag.as_str()).collect();
            assert_eq!(found, wanted, "{sort}");
        }
        let asked = groups_of("search=V").unwrap();
        assert_eq!(paged(all.to_vec(), &asked).0.len(), 2);
        for bad in ["tagsLimit=0", "assignmentLimit=x", "tagsCursor=x", "sort=x", "x=1"] {
            assert!(groups_of(bad).is_err(), "{bad}");
        }
    }
}
