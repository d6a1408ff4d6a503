//! `filesystem.Filesystem`: what a sandbox's agent does with files, under the names of its clients.

use axum::body::Body;
use axum::http::{HeaderMap, Response};
use cofferdam_live::inside::{Entry, NodeKind};
use cofferdam_live::{
    Account, Guest, GuestError, ListDirectory, MakeDirectory, RemoveFile, RenameFile,
};
use hyper::body::Incoming;
use serde::Deserialize;
use serde_json::{Value, json};

use super::connect::{self, ContentType, Fault, Form, Messages, Replied};
use super::entry::{described, info, look, missing};
use super::paths::{followed, is_absent, is_through, parent, plain, unavailable};
use super::room::Room;
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
    let account = match room.acting(headers) {
        Ok(account) => account,
        Err(fault) if form == Form::Stream => return connect::failed(&fault, codec),
        Err(fault) => return fault.response(),
    };
    match (form, method) {
        (Form::Stream, "WatchDir") => {
            let message = Messages::first(body, codec).await;
            watchers::stream(room, account, message, headers, codec).await
        }
        (Form::Unary, _) => {
            let replied = match connect::message(body, codec).await {
                Ok(message) => unary(room, account, method, message).await,
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
    account: Account,
    method: &str,
    message: Value,
) -> Replied {
    let guest = &room.guest;
    match method {
        "Stat" => {
            let OnePath { path } = connect::parse(message)?;
            Ok(json!({"entry": described(guest, &plain(&path, account)?).await?}))
        }
        "ListDir" => {
            let ListDir { path, depth } = connect::parse(message)?;
            list(guest, &plain(&path, account)?, depth.max(1)).await
        }
        "MakeDir" => {
            let OnePath { path } = connect::parse(message)?;
            make_dir(guest, &plain(&path, account)?, account).await
        }
        "Move" => {
            let Move { source, destination } = connect::parse(message)?;
            let (from, to) = (plain(&source, account)?, plain(&destination, account)?);
            rename(guest, &from, &to, account).await
        }
        "Remove" => {
            let OnePath { path } = connect::parse(message)?;
            remove(guest, &plain(&path, account)?).await
        }
        "CreateWatcher" => watchers::create(room, account, message).await,
        "GetWatcherEvents" => watchers::events(room, message).await,
        "RemoveWatcher" => watchers::remove(room, message),
        other => Err(unknown(other)),
    }
}

/// A directory, its links followed.
pub(crate) async fn directory(guest: &Guest, path: &str) -> Result<String, Fault> {
    let real = followed(guest, path, true).await?;
    match look(guest, &real).await? {
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
async fn list(guest: &Guest, path: &str, depth: u32) -> Replied {
    let real = directory(guest, path).await?;
    let mut left = MAX_ENTRIES;
    let rest = listed(guest, &real, &mut left).await?;
    let mut found = Vec::new();
    let mut open = vec![OpenDir { real, shown: path.to_owned(), rest }];
    while let Some(dir) = open.last_mut() {
        let Some(entry) = dir.rest.next() else {
            open.pop();
            continue;
        };
        let (real, shown) = (join(&dir.real, &entry.name), join(&dir.shown, &entry.name));
        let target = match entry.kind {
            NodeKind::Link => match followed(guest, &real, true).await.ok() {
                Some(to) => look(guest, &to).await?.map(|(entry, _)| entry.kind),
                None => None,
            },
            _ => None,
        };
        found.push(info(&entry, &shown, target));
        let level = u32::try_from(open.len()).unwrap_or(u32::MAX);
        if entry.kind == NodeKind::Dir && level < depth && !entry.mangled {
            let rest = listed(guest, &real, &mut left).await?;
            open.push(OpenDir { real, shown, rest });
        }
    }
    Ok(json!({"entries": found}))
}

/// The entries of a directory by their names, none where it is gone meanwhile. Takes them from what one list may have.
async fn listed(
    guest: &Guest,
    real: &str,
    left: &mut u64,
) -> Result<std::vec::IntoIter<Entry>, Fault> {
    let mut entries = match guest.ask(ListDirectory { path: real.to_owned(), most: *left }).await {
        Ok(entries) => entries,
        Err(error) if is_absent(&error) => Vec::new(),
        Err(GuestError::Collect(why)) => return Err(Fault::new("resource_exhausted", why)),
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
pub(crate) async fn make_dirs(guest: &Guest, path: &str, account: Account) -> Result<(), Fault> {
    let mut missing = Vec::new();
    let mut at = path;
    while at != "/" {
        match look(guest, at).await? {
            None => missing.push(at.to_owned()),
            Some((entry, _)) if entry.kind == NodeKind::File => {
                return Err(Fault::argument(format!("path is a file: {at}")));
            }
            Some(_) => break,
        }
        at = parent(at);
    }
    for dir in missing.into_iter().rev() {
        let real = followed(guest, &dir, false).await?;
        let new = MakeDirectory { path: real, mode: DIR_MODE, owner: Some(account.user) };
        guest.ask(new).await.map_err(|error| unavailable(&error))?;
    }
    Ok(())
}

async fn make_dir(guest: &Guest, path: &str, account: Account) -> Replied {
    let real = followed(guest, path, true).await?;
    match look(guest, &real).await? {
        Some((entry, _)) if entry.kind == NodeKind::Dir => {
            Err(Fault::new("already_exists", format!("directory already exists: {path}")))
        }
        Some(_) => Err(Fault::argument(format!("path exists and is not a directory: {path}"))),
        None => {
            make_dirs(guest, path, account).await?;
            Ok(json!({"entry": described(guest, path).await?}))
        }
    }
}

async fn rename(guest: &Guest, from: &str, to: &str, account: Account) -> Replied {
    let (_, source) = look(guest, from).await?.ok_or_else(|| missing(from))?;
    make_dirs(guest, parent(to), account).await?;
    let target = followed(guest, to, false).await?;
    match guest.ask(RenameFile { from: source, to: target }).await {
        Ok(()) => Ok(json!({"entry": described(guest, to).await?})),
        Err(GuestError::Refused { error, .. }) => Err(Fault::argument(error)),
        Err(error) => Err(unavailable(&error)),
    }
}

async fn remove(guest: &Guest, path: &str) -> Replied {
    if path == "/" {
        return Err(Fault::argument("the root cannot be removed"));
    }
    let Some((_, real)) = look(guest, path).await? else { return Ok(json!({})) };
    match guest.ask(RemoveFile { path: real, recursive: true }).await {
        Ok(()) => Ok(json!({})),
        Err(error) if is_absent(&error) => Ok(json!({})),
        Err(error) if is_through(&error) => Err(Fault::argument(error.to_string())),
        Err(error) => Err(unavailable(&error)),
    }
}
