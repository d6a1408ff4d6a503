//! What is asked of the tags of a template. The record has the build that each tag names now, and none of those before.

use axum::body::Body;
use axum::http::Response;
use cofferdam_contracts::canonical::digest_bytes;
use cofferdam_contracts::id::TemplateId;
use cofferdam_contracts::template_build::tag;
use cofferdam_ledger::template_tags::TagView;
use serde_json::{Value, json};

use super::builds::refused;
use super::control::{Asking, Outcome};
use super::{page, shape, tags};

/// Tags of one page, and what clients ask for where their user says nothing.
const MAX_PAGE: usize = 100;
const DEFAULT_PAGE: usize = 25;

/// Tags of a template of the caller's tenant.
async fn all(
    call: &Asking<'_>,
    template: &str,
) -> Result<(TemplateId, Vec<TagView>), Response<Body>> {
    let text = shape::decoded(template).unwrap_or_default();
    let template = tags::known(call.front, &call.who, &text).await?;
    let all = call.front.shared.flows.ledger.builds().tags(&call.who.tenant, &template).await;
    Ok((template, all.map_err(|error| shape::refused(error.into()))?))
}

/// `GET /templates/{id}/tags/count`.
pub(super) async fn count(call: Asking<'_>, template: &str) -> Outcome {
    let (_, all) = all(&call, template).await?;
    Ok(shape::json_of(200, &json!({"total": all.len()})))
}

/// `GET /templates/{id}/tags/exists`.
pub(super) async fn exists(call: Asking<'_>, template: &str) -> Outcome {
    let asked = shape::query(&call.query, "tag").ok_or_else(|| refused("tag is missing"))?;
    let asked = tag(&asked).map_err(refused)?;
    let (_, all) = all(&call, template).await?;
    let exists = all.iter().any(|one| one.tag == asked);
    Ok(shape::json_of(200, &json!({"exists": exists, "normalizedTag": asked})))
}

/// A tag and its build as one assignment. It has no id of its own on record: what makes it the only one gives its id.
fn assignment(template: &TemplateId, one: &TagView) -> Value {
    let whole = format!("{template} {} {} {}", one.tag, one.build, one.assigned_ms);
    let digest = digest_bytes(whole.as_bytes());
    let hex = |from: usize, to: usize| digest.as_str().get(from..to).unwrap_or_default();
    let id =
        format!("{}-{}-{}-{}-{}", hex(0, 8), hex(8, 12), hex(12, 16), hex(16, 20), hex(20, 32));
    json!({
        "assignmentId": id, "buildId": one.build, "assignedAt": shape::time(one.assigned_ms),
        "buildCreatedAt": shape::time(one.created_ms), "buildFinishedAt": one.ended_ms.map(shape::time),
    })
}

/// `GET /templates/{id}/tags/{tag}/assignments`.
pub(super) async fn assignments(call: Asking<'_>, template: &str, asked: &str) -> Outcome {
    let asked = tag(&shape::decoded(asked).unwrap_or_default()).map_err(refused)?;
    for (name, value) in page::pairs(&call.query) {
        match name {
            "limit" => drop(page::bounded(name, value, MAX_PAGE).map_err(refused)?),
            // There is one page.
            "cursor" => return Err(refused("cursor is not of this list")),
            other => return Err(refused(format!("the query's {other} is not supported"))),
        }
    }
    let (template, all) = all(&call, template).await?;
    let own = all.iter().filter(|one| one.tag == asked);
    let data: Vec<Value> = own.map(|one| assignment(&template, one)).collect();
    Ok(shape::json_of(200, &json!({"data": data, "nextCursor": null})))
}

/// Which groups a query asks for.
#[derive(Debug, PartialEq, Eq)]
struct Groups {
    limit: usize,
    after: Option<(i64, String)>,
    search: String,
    by_name: bool,
    falling: bool,
}

fn groups_of(query: &str) -> Result<Groups, String> {
    let mut asked = Groups {
        limit: DEFAULT_PAGE,
        after: None,
        search: String::new(),
        by_name: false,
        falling: true,
    };
    for (name, value) in page::pairs(query) {
        let value = shape::decoded(value).ok_or_else(|| format!("{name} is not UTF-8"))?;
        match name {
            // Each has one.
            "assignmentLimit" => drop(page::bounded(name, &value, MAX_PAGE)?),
            "tagsLimit" => asked.limit = page::bounded(name, &value, MAX_PAGE)?,
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
    let more = page::cut(&mut all, asked.limit);
    let next = all.last().filter(|_| more).map(|one| format!("{} {}", one.assigned_ms, one.tag));
    (all, next)
}

/// `GET /templates/{id}/tags/groups`.
pub(super) async fn groups(call: Asking<'_>, template: &str) -> Outcome {
    let asked = groups_of(&call.query).map_err(refused)?;
    let (template, all) = all(&call, template).await?;
    let (all, next) = paged(all, &asked);
    let group = |one: &TagView| json!({"tag": one.tag, "assignments": [assignment(&template, one)], "hasMore": false});
    let tags: Vec<Value> = all.iter().map(group).collect();
    Ok(shape::json_of(200, &json!({"tags": tags, "nextCursor": next})))
}

#[cfg(test)]
mod tests {
    use super::*;
    use cofferdam_contracts::id::BuildId;

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
