//! `filesystem.Filesystem`: what the agent does with files, under the names of its clients.

use axum::body::Body;
use axum::http::{HeaderMap, Response};
use cofferdam_live::inside::{Entry, NodeKind};
use cofferdam_live::{Agent, AgentError};
use hyper::body::Incoming;
use serde::Deserialize;
use serde_json::{Value, json};

use super::connect::{self, ContentType, Fault, Form, Messages, Replied};
use super::entry::{described, info, look, missing};
use super::paths::{followed, is_absent, is_through, parent, plain, unavailable};
use super::room::{Person, Room};
use super::watchers;

/// Entries of one list, over all its depths.
const MAX_ENTRIES: u64 = 10_000;
const DIR_MODE: u32 = 0o755;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct OnePath {
    path: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ListDir {
    path: String,
    #[serde(default)]
    depth: u32,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Move {
    source: String,
    destination: String,
}

/// Answers one call of the service.
pub(crate) async fn answer(
    room: &std::sync::Arc<Room>,
    method: &str,
    ContentType { form, codec }: ContentType,
    headers: &HeaderMap,
    body: Incoming,
) -> Response<Body> {
    let person = match room.acting(headers) {
        Ok(person) => person,
        Err(fault) if form == Form::Stream => return connect::failed(&fault, codec),
        Err(fault) => return fault.response(),
    };
    match (form, method) {
        (Form::Stream, "WatchDir") => {
            let message = Messages::first(body, codec).await;
            watchers::stream(room, person, message, headers, codec).await
        }
        (Form::Unary, _) => {
            let replied = match connect::message(body, codec).await {
                Ok(message) => unary(room, person, method, message).await,
                Err(fault) => Err(fault),
            };
            connect::unary(replied, codec)
        }
        (Form::Stream, _) => connect::failed(&unknown(method), codec),
    }
}

fn unknown(method: &str) -> Fault {
    let method: String = method.chars().take(64).collect();
    Fault::new(
        "unimplemented",
        format!("filesystem.Filesystem has no method {method} of this form"),
    )
}

async fn unary(
    room: &std::sync::Arc<Room>,
    person: Person,
    method: &str,
    message: Value,
) -> Replied {
    let agent = &room.held.agent;
    match method {
        "Stat" => {
            let OnePath { path } = connect::parse(message)?;
            Ok(json!({"entry": described(agent, &plain(&path, person)?).await?}))
        }
        "ListDir" => {
            let ListDir { path, depth } = connect::parse(message)?;
            list(agent, &plain(&path, person)?, depth.max(1)).await
        }
        "MakeDir" => {
            let OnePath { path } = connect::parse(message)?;
            make_dir(agent, &plain(&path, person)?, person).await
        }
        "Move" => {
            let Move { source, destination } = connect::parse(message)?;
            let (from, to) = (plain(&source, person)?, plain(&destination, person)?);
            rename(agent, &from, &to, person).await
        }
        "Remove" => {
            let OnePath { path } = connect::parse(message)?;
            remove(agent, &plain(&path, person)?).await
        }
        "CreateWatcher" => watchers::create(room, person, message).await,
        "GetWatcherEvents" => watchers::events(room, message).await,
        "RemoveWatcher" => watchers::remove(room, message),
        other => Err(unknown(other)),
    }
}

/// A directory, its links followed.
pub(crate) async fn directory(agent: &Agent, path: &str) -> Result<String, Fault> {
    let real = followed(agent, path, true).await?;
    match look(agent, &real).await? {
        None => Err(missing(path)),
        Some((entry, real)) if entry.kind == NodeKind::Dir => Ok(real),
        Some(_) => Err(Fault::argument(format!("path is not a directory: {path}"))),
    }
}

/// A directory whose entries are being listed.
struct OpenDir {
    real: String,
    /// As its client names it.
    shown: String,
    rest: std::vec::IntoIter<Entry>,
}

/// Lists a tree as E2B does: by name, and what is in a directory behind it.
async fn list(agent: &Agent, path: &str, depth: u32) -> Replied {
    let real = directory(agent, path).await?;
    let mut left = MAX_ENTRIES;
    let rest = listed(agent, &real, &mut left).await?;
    let mut found = Vec::new();
    let mut open = vec![OpenDir { real, shown: path.to_owned(), rest }];
    while let Some(dir) = open.last_mut() {
        let Some(entry) = dir.rest.next() else {
            open.pop();
            continue;
        };
        let (real, shown) = (join(&dir.real, &entry.name), join(&dir.shown, &entry.name));
        let target = match entry.kind {
            NodeKind::Link => match followed(agent, &real, true).await.ok() {
                Some(to) => look(agent, &to).await?.map(|(entry, _)| entry.kind),
                None => None,
            },
            _ => None,
        };
        found.push(info(&entry, &shown, target));
        let level = u32::try_from(open.len()).unwrap_or(u32::MAX);
        if entry.kind == NodeKind::Dir && level < depth && !entry.mangled {
            let rest = listed(agent, &real, &mut left).await?;
            open.push(OpenDir { real, shown, rest });
        }
    }
    Ok(json!({"entries": found}))
}

/// The entries of a directory by their names, none where it is gone meanwhile. Takes them from what one list may have.
async fn listed(
    agent: &Agent,
    real: &str,
    left: &mut u64,
) -> Result<std::vec::IntoIter<Entry>, Fault> {
    let mut entries = match agent.files().list(real, *left).await {
        Ok(entries) => entries,
        Err(error) if is_absent(&error) => Vec::new(),
        Err(AgentError::Collect(why)) => return Err(Fault::new("resource_exhausted", why)),
        Err(error) => return Err(unavailable(&error)),
    };
    *left = left.saturating_sub(u64::try_from(entries.len()).unwrap_or(u64::MAX));
    entries.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    Ok(entries.into_iter())
}

fn join(dir: &str, name: &str) -> String {
    format!("{}/{name}", dir.trim_end_matches('/'))
}

/// Makes a directory and the parents that are missing, each with this owner.
pub(crate) async fn make_dirs(agent: &Agent, path: &str, person: Person) -> Result<(), Fault> {
    let mut missing = Vec::new();
    let mut at = path;
    while at != "/" {
        match look(agent, at).await? {
            None => missing.push(at.to_owned()),
            Some((entry, _)) if entry.kind == NodeKind::File => {
                return Err(Fault::argument(format!("path is a file: {at}")));
            }
            Some(_) => break,
        }
        at = parent(at);
    }
    for dir in missing.into_iter().rev() {
        let real = followed(agent, &dir, false).await?;
        let made = agent.files().mkdir(&real, DIR_MODE, Some(person.user)).await;
        made.map_err(|error| unavailable(&error))?;
    }
    Ok(())
}

async fn make_dir(agent: &Agent, path: &str, person: Person) -> Replied {
    let real = followed(agent, path, true).await?;
    match look(agent, &real).await? {
        Some((entry, _)) if entry.kind == NodeKind::Dir => {
            Err(Fault::new("already_exists", format!("directory already exists: {path}")))
        }
        Some(_) => Err(Fault::argument(format!("path exists and is not a directory: {path}"))),
        None => {
            make_dirs(agent, path, person).await?;
            Ok(json!({"entry": described(agent, path).await?}))
        }
    }
}

async fn rename(agent: &Agent, from: &str, to: &str, person: Person) -> Replied {
    let (_, source) = look(agent, from).await?.ok_or_else(|| missing(from))?;
    make_dirs(agent, parent(to), person).await?;
    let target = followed(agent, to, false).await?;
    match agent.files().rename(&source, &target).await {
        Ok(()) => Ok(json!({"entry": described(agent, to).await?})),
        Err(AgentError::Refused { error, .. }) => Err(Fault::argument(error)),
        Err(error) => Err(unavailable(&error)),
    }
}

async fn remove(agent: &Agent, path: &str) -> Replied {
    if path == "/" {
        return Err(Fault::argument("the root cannot be removed"));
    }
    let Some((_, real)) = look(agent, path).await? else { return Ok(json!({})) };
    match agent.files().remove(&real, true).await {
        Ok(()) => Ok(json!({})),
        Err(error) if is_absent(&error) => Ok(json!({})),
        Err(error) if is_through(&error) => Err(Fault::argument(error.to_string())),
        Err(error) => Err(unavailable(&error)),
    }
}
