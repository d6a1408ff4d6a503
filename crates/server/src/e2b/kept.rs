//! Pause, resume, snapshots and fork, as E2B's clients ask for them. Clients ask for memory when their user says nothing: a class
//! that keeps files alone gives these.

use cofferdam_contracts::error::ErrorCode;
use cofferdam_contracts::id::{LiveId, SnapshotId};
use cofferdam_contracts::live::LiveState;
use cofferdam_contracts::snapshot::{SnapshotKind, SnapshotView};
use cofferdam_flows::Error;
use cofferdam_live::{
    DeleteSnapshot, DeleteTemplate, ForkSandbox, PauseSandbox, RefuseElsewhere, ResumeOptions,
    ResumeSandbox, TakeSnapshot, ViewSandbox,
};
use serde_json::{Value, json};

use super::control::{
    Asking, Fork, NewSnapshot, OLD_S, Outcome, Pause, Timeout, found, missing, sandbox,
};
use super::{page, shape, templates};

/// Rows of one page of snapshots.
const MAX_PAGE: usize = 100;

pub(super) async fn pause(call: Asking<'_>, id: &str) -> Outcome {
    let live = LiveId::parse(id).map_err(|_| missing(id))?;
    let Asking { front, who, body, .. } = call;
    let asked: Pause = shape::body(body).await?;
    let pause = PauseSandbox { who: who.clone(), id: live.clone(), memory: asked.memory };
    let paused = front.shared.live.ask(pause).await;
    front.tidy().await;
    let Err(error) = paused else { return Ok(shape::empty(204)) };
    Err(match &error {
        // Clients take a 409 for a success: it is paused already. So nothing else is one.
        Error::Refused(refusal) if refusal.code == ErrorCode::StateConflict => {
            let view = front.shared.live.ask(ViewSandbox { who, id: live }).await;
            let is_paused = view.is_ok_and(|view| view.state == LiveState::Paused);
            if is_paused { shape::refused(error) } else { shape::error(400, &refusal.message) }
        }
        _ => found(id, error),
    })
}

pub(super) async fn resume(call: Asking<'_>, id: &str) -> Outcome {
    let live = LiveId::parse(id).map_err(|_| missing(id))?;
    let Asking { front, who, domain, body, .. } = call;
    let asked: Timeout = shape::body(body).await?;
    let seconds = asked.timeout.unwrap_or(OLD_S);
    let options = ResumeOptions::of(Some(seconds), asked.auto_pause, asked.memory);
    let resume = ResumeSandbox { who, id: live.clone(), options };
    let resumed = front.shared.live.ask(resume).await;
    if let Some(guest) = resumed.map_err(|error| found(id, error))? {
        return Ok(shape::json_of(201, &sandbox(&guest.facts, &domain)));
    }
    // Older clients take a 409 for a success: it runs already, and here.
    let elsewhere = front.shared.live.ask(RefuseElsewhere { id: live }).await;
    elsewhere.map_err(|error| found(id, error))?;
    Err(shape::error(409, format!("sandbox {id} is not paused: it runs already, or starts")))
}

pub(super) async fn fork(call: Asking<'_>, id: &str) -> Outcome {
    let live = LiveId::parse(id).map_err(|_| missing(id))?;
    let Asking { front, who, domain, body, .. } = call;
    let asked: Fork = shape::body(body).await?;
    let (count, seconds) = (asked.count.unwrap_or(1), asked.timeout.unwrap_or(OLD_S));
    let fork = ForkSandbox { who, id: live, count, timeout_s: Some(seconds) };
    let forks = front.shared.live.ask(fork).await;
    let forks = forks.map_err(|error| found(id, error))?;
    let told = forks.into_iter().map(|one| match one {
        Ok(guest) => json!({"sandbox": sandbox(&guest.facts, &domain)}),
        Err(error) => {
            let refusal = error.refusal();
            json!({"error": {"code": refusal.code.status(), "message": refusal.message}})
        }
    });
    Ok(shape::json_of(201, &Value::Array(told.collect())))
}

/// A snapshot as clients have it: its names are ids and the name that its user gave.
fn told(view: &SnapshotView) -> Value {
    let names: Vec<&str> = view.name.as_deref().into_iter().collect();
    json!({"snapshotID": view.id, "names": names})
}

pub(super) async fn snapshot(call: Asking<'_>, id: &str) -> Outcome {
    let live = LiveId::parse(id).map_err(|_| missing(id))?;
    let Asking { front, who, body, .. } = call;
    let asked: NewSnapshot = shape::body(body).await?;
    let take = TakeSnapshot { who, id: live, name: asked.name };
    let made = front.shared.live.ask(take).await;
    Ok(shape::json_of(201, &told(&made.map_err(|error| found(id, error))?)))
}

/// What a client's list asks for: a sandbox, how many, and after which.
#[derive(Debug, Default)]
struct Listing {
    live: Option<LiveId>,
    name: Option<String>,
    limit: Option<usize>,
    after: Option<SnapshotId>,
}

fn asked(query: &str) -> Result<Listing, String> {
    let mut asked = Listing::default();
    for (name, value) in page::pairs(query) {
        match name {
            "sandboxID" => asked.live = Some(LiveId::parse(value).map_err(|why| why.to_string())?),
            "limit" => {
                asked.limit = Some(page::bounded(name, value, MAX_PAGE)?);
            }
            "name" => asked.name = Some(shape::decoded(value).ok_or("name is not UTF-8")?),
            "nextToken" => {
                asked.after = Some(SnapshotId::parse(value).map_err(|why| why.to_string())?)
            }
            other => return Err(format!("the query's {other} is not supported")),
        }
    }
    Ok(asked)
}

pub(super) async fn list(call: Asking<'_>) -> Outcome {
    let Listing { live, name, limit, after } =
        asked(&call.query).map_err(|why| shape::error(400, why))?;
    let rows = &call.front.shared.flows.ledger;
    let all = rows.snapshots().list(&call.who.tenant, live.as_ref()).await;
    let mut all = all.map_err(|error| shape::refused(error.into()))?;
    // What a sandbox is paused into is that sandbox, not a template.
    all.retain(|view| view.kind == SnapshotKind::Snapshot && (name.is_none() || view.name == name));
    let limit = limit.unwrap_or(MAX_PAGE);
    let from = after.and_then(|after| all.iter().position(|view| view.id == after));
    let rest = all.get(from.map_or(0, |at| at.saturating_add(1))..).unwrap_or_default();
    let shown = rest.get(..limit).unwrap_or(rest);
    let last = shown.last().filter(|_| rest.len() > limit);
    Ok(page::answer(&shown.iter().map(told).collect(), last.map(|last| last.id.as_str())))
}

/// Snapshots and templates that its tenant built are the caller's to delete; others are the host's.
pub(super) async fn delete(call: Asking<'_>, id: &str) -> Outcome {
    let gone = || templates::missing(id);
    let name = id.split(':').next().unwrap_or_default();
    let (flows, lives) = (&call.front.shared.flows, &call.front.shared.live);
    if let Some((template, _)) = templates::built(flows, &call.who, name).await? {
        let deleted = lives.ask(DeleteTemplate { who: call.who, template }).await;
        return deleted.map(|()| shape::empty(204)).map_err(shape::refused);
    }
    let Ok(snapshot) = SnapshotId::parse(name) else {
        let why = "not supported: templates are the host's; see `cofferdam template rm`";
        let is_known = templates::is_known(lives, name).await;
        return Err(match is_known.map_err(shape::refused)? {
            true => shape::error(400, why),
            false => gone(),
        });
    };
    let deleted = lives.ask(DeleteSnapshot { who: call.who, id: snapshot }).await;
    match deleted {
        Ok(()) => Ok(shape::empty(204)),
        Err(Error::Refused(refusal)) if refusal.code == ErrorCode::NotFound => Err(gone()),
        Err(error) => Err(shape::refused(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_snapshots_is_asked_for_by_sandbox_and_by_page() {
        let id = "b".repeat(20);
        let read = asked(&format!("sandboxID={id}&limit=3&nextToken={id}&name=a%20b")).unwrap();
        assert_eq!((read.live.unwrap().as_str(), read.limit), (id.as_str(), Some(3)));
        assert_eq!(
            (read.after.unwrap().as_str(), read.name.unwrap().as_str()),
            (id.as_str(), "a b")
        );
        for bad in ["limit=0", "limit=101", "x=y", "sandboxID=x", "nextToken=x"] {
            assert!(asked(bad).is_err(), "{bad}");
        }
    }
}
