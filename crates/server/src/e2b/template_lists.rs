//! Templates by the page, and one with its builds, as E2B's clients read them.

use cofferdam_contracts::id::BuildId;
use cofferdam_ledger::template_views::ListedBuild;
use serde_json::{Value, json};

use super::builds::refused;
use super::control::{Asking, Outcome};
use super::envd::VERSION;
use super::templates::{CPUS, MEM_MB, built, default_disk, hosts, missing, own};
use super::{page, shape, templates};

/// Rows of one page.
const MAX_PAGE: usize = 100;

/// Which rows a query asks for.
#[derive(Debug, Default, PartialEq, Eq)]
struct Page {
    limit: Option<usize>,
    /// The token that the page before ended with.
    after: Option<String>,
}

impl Page {
    fn of(query: &str) -> Result<Self, String> {
        let mut asked = Self::default();
        for (name, value) in page::pairs(query) {
            match name {
                "limit" => asked.limit = Some(page::bounded(name, value, MAX_PAGE)?),
                "nextToken" => {
                    asked.after = Some(shape::decoded(value).ok_or("nextToken is not UTF-8")?);
                }
                // There are no teams: the key's tenant is meant.
                "teamID" => {}
                other => return Err(format!("the query's {other} is not supported")),
            }
        }
        Ok(asked)
    }

    fn limit(&self) -> usize {
        self.limit.unwrap_or(MAX_PAGE)
    }
}

/// Where an entry stands in the list: the host's are before those of the tenant, each by name.
fn key(entry: &Value) -> String {
    let name = entry.pointer("/names/0").and_then(Value::as_str);
    let group = if entry["public"] == true { "host" } else { "own" };
    format!("{group}.{}", name.unwrap_or_default())
}

/// The entries of one page, and the token of the next. Pure.
fn cut(mut all: Vec<Value>, asked: &Page) -> (Vec<Value>, Option<String>) {
    all.sort_by_key(key);
    if let Some(after) = &asked.after {
        all.retain(|entry| key(entry) > *after);
    }
    let more = page::cut(&mut all, asked.limit());
    let next = all.last().filter(|_| more).map(key);
    (all, next)
}

/// `GET /v2/templates`.
pub(super) async fn pages(call: Asking<'_>) -> Outcome {
    let asked = Page::of(&call.query).map_err(refused)?;
    let (all, next) = cut(templates::all(&call).await?, &asked);
    Ok(page::answer(&Value::Array(all), next.as_deref()))
}

/// `GET /default-templates`: the host's.
pub(super) async fn defaults(call: Asking<'_>) -> Outcome {
    let all = hosts(&call.front.shared.live).await.map_err(shape::refused)?;
    let all = all.into_iter().map(|one| with(one, "isDefault", true.into()));
    Ok(shape::json_of(200, &all.collect()))
}

/// An object with one field more.
fn with(mut value: Value, name: &str, what: Value) -> Value {
    if let Some(fields) = value.as_object_mut() {
        fields.insert(name.to_owned(), what);
    }
    value
}

fn listed(build: &ListedBuild) -> Value {
    let mem_mb = build.mem_mb.map_or(MEM_MB, u64::from);
    let mut value = json!({
        "buildID": build.id, "status": build.status.as_str(), "createdAt": shape::time(build.created_ms),
        "updatedAt": shape::time(build.ended_ms.unwrap_or(build.created_ms)),
        "cpuCount": build.cpu.map_or(CPUS, u64::from), "memoryMB": mem_mb, "diskSizeMB": default_disk(mem_mb),
        "envdVersion": VERSION,
    });
    if let (Some(fields), Some(ended)) = (value.as_object_mut(), build.ended_ms) {
        fields.insert("finishedAt".into(), shape::time(ended).into());
    }
    value
}

/// `GET /templates/{id}`: a template of the tenant with a page of its builds, newest first. Those of the host have no builds
/// that clients could follow.
pub(super) async fn detail(call: Asking<'_>, id: &str) -> Outcome {
    let asked = Page::of(&call.query).map_err(refused)?;
    let id = shape::decoded(id).unwrap_or_default();
    let flows = &call.front.shared.flows;
    let fault = |error: cofferdam_ledger::LedgerError| shape::refused(error.into());
    let Some((template, _)) = built(flows, &call.who, &id).await? else {
        let hosts = hosts(&call.front.shared.live).await.map_err(shape::refused)?;
        let found = hosts.into_iter().find(|one| one["templateID"] == *id);
        let value = found.ok_or_else(|| missing(&id))?;
        return Ok(shape::json_of(200, &with(value, "builds", json!([]))));
    };
    let after = asked.after.as_deref().map(BuildId::parse).transpose();
    let after = after.map_err(|_| refused("nextToken is not of this list"))?;
    let rows = flows.ledger.builds();
    let seen = rows.listed(&call.who.tenant, &template).await.map_err(fault)?;
    let value = own(&seen.ok_or_else(|| missing(&id))?);
    let limit = i64::try_from(asked.limit().saturating_add(1)).unwrap_or(i64::MAX);
    let mut builds = rows.of_template(&template, after.as_ref(), limit).await.map_err(fault)?;
    let more = page::cut(&mut builds, asked.limit());
    let value = with(value, "builds", builds.iter().map(listed).collect());
    let next = builds.last().filter(|_| more).map(|build| build.id.as_str());
    Ok(page::answer(&value, next))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_read_page_by_page_each_entry_once() {
        let entry = |name: &str, public: bool| json!({"names": [name], "public": public});
        let all = [entry("b", false), entry("base", true), entry("a", false), entry("zero", true)]
            .to_vec();
        let mut page = Page::of("limit=3&teamID=x").unwrap();
        let names = |all: &[Value]| -> Vec<String> {
            all.iter().map(|one| one["names"][0].as_str().unwrap().to_owned()).collect()
        };
        let (first, next) = cut(all.clone(), &page);
        assert_eq!(names(&first), ["base", "zero", "a"]);
        page.after = next;
        let (second, next) = cut(all, &page);
        assert_eq!((names(&second), next), (vec!["b".to_owned()], None));
        for bad in ["limit=0", "limit=101", "limit=x", "x=1"] {
            assert!(Page::of(bad).is_err(), "{bad}");
        }
    }
}
