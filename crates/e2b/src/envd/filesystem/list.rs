//! Lists a directory of a sandbox, to the depth that a client asks for.

use cofferdam_live::inside::{Entry, NodeKind};
use cofferdam_live::{Guest, GuestError, ListDirectory};
use serde_json::json;

use crate::connect::fault::{Fault, ReplyResult};
use crate::connect::message;
use crate::envd::call::Rpc;
use crate::envd::entry::{info, look, missing};
use crate::envd::paths::plain;
use crate::envd::paths::{followed, is_absent, unavailable};
use serde::Deserialize;

/// Entries of one list, over all its depths.
const MAX_ENTRIES: u64 = 10_000;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ListDir {
    path: String,
    #[serde(default)]
    depth: u32,
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
async fn list(guest: &Guest, path: &str, depth: u32) -> ReplyResult {
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

/// Lists a directory.
pub(crate) async fn list_dir(call: Rpc) -> ReplyResult {
    let Rpc { envd, account, message } = call;
    let ListDir { path, depth } = message::parse(message)?;
    list(&envd.guest, &plain(&path, account?)?, depth.max(1)).await
}
