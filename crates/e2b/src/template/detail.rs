//! A template with its builds.

use cofferdam_contracts::id::BuildId;

use crate::answer::{self, bad_request};
use crate::call::{Call, Outcome};
use crate::query;
use crate::template::list::Page;
use crate::template::names::{BuildAnswer, built, hosts, missing, own};

/// `GET /templates/{id}`: a template of the tenant with a page of its builds, newest first. Those of the host have no builds
/// that clients could follow.
pub(crate) async fn detail(call: Call) -> Outcome {
    let id = &call.param("id");
    let asked = Page::of(&call.query).map_err(bad_request)?;
    let id = query::decoded(id).unwrap_or_default();
    let flows = &call.services.flows;
    let fault = |error: cofferdam_ledger::LedgerError| answer::refused(error.into());
    let Some((template, _)) = built(flows, &call.who, &id).await? else {
        let hosts = hosts(&call.services.live).await.map_err(answer::refused)?;
        let found = hosts.into_iter().find(|one| one.template_id == *id);
        let found = found.ok_or_else(|| missing(&id))?;
        return Ok(answer::json_of(200, &found.with_builds(Vec::new())));
    };
    let after = asked.after.as_deref().map(BuildId::parse).transpose();
    let after = after.map_err(|_| bad_request("nextToken is not of this list"))?;
    let rows = flows.ledger.builds();
    let seen = rows.listed(&call.who.tenant, &template).await.map_err(fault)?;
    let own = own(&seen.ok_or_else(|| missing(&id))?);
    let limit = i64::try_from(asked.limit().saturating_add(1)).unwrap_or(i64::MAX);
    let mut builds = rows.of_template(&template, after.as_ref(), limit).await.map_err(fault)?;
    let more = query::cut(&mut builds, asked.limit());
    let listed = builds.iter().map(BuildAnswer::of).collect();
    let next = builds.last().filter(|_| more).map(|build| build.id.as_str());
    Ok(answer::page(&own.with_builds(listed), next))
}
