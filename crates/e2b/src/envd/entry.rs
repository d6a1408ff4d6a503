//! `filesystem.EntryInfo` of a node of the sandbox.

use cofferdam_live::inside::{Entry, NodeKind};
use cofferdam_live::{Guest, StatFile};
use serde_json::{Value, json};

use crate::answer::time;
use crate::connect::fault::{Fault, ReplyResult};
use crate::envd::paths::{followed, is_absent, is_through, name, parent, unavailable};

const KINDS: [(NodeKind, &str, char); 4] = [
    (NodeKind::File, "FILE_TYPE_FILE", '-'),
    (NodeKind::Dir, "FILE_TYPE_DIRECTORY", 'd'),
    (NodeKind::Link, "FILE_TYPE_SYMLINK", 'L'),
    (NodeKind::Other, "FILE_TYPE_UNSPECIFIED", '?'),
];

/// Years 1 to 9999: what clients can read, and any program inside can set another time.
const FIRST_S: i64 = -62_135_596_800;
const LAST_S: i64 = 253_402_300_799;

fn kind_of(kind: NodeKind) -> (&'static str, char) {
    let found = KINDS.into_iter().find(|(known, ..)| *known == kind);
    found.map_or(("FILE_TYPE_UNSPECIFIED", '?'), |(_, name, letter)| (name, letter))
}

/// Permissions as Go writes them: a letter for the kind, then three times `rwx`.
fn permissions(kind: NodeKind, mode: u32) -> String {
    let bits = (0..9).map(|at| match (mode >> (8 - at) & 1, at % 3) {
        (0, _) => '-',
        (_, 0) => 'r',
        (_, 1) => 'w',
        _ => 'x',
    });
    std::iter::once(kind_of(kind).1).chain(bits).collect()
}

/// A user or group by its name in the base template, or by its number.
fn who(number: u32) -> String {
    match number {
        0 => "root".to_owned(),
        1_000 => "user".to_owned(),
        other => other.to_string(),
    }
}

/// The message of an entry at a path. `target`: the kind of what a link leads to, where that is known.
pub(crate) fn info(entry: &Entry, path: &str, target: Option<NodeKind>) -> Value {
    let is_link = entry.kind == NodeKind::Link;
    let kind = target.filter(|_| is_link).unwrap_or(entry.kind);
    let mut value = json!({
        "name": entry.name,
        "type": kind_of(kind).0,
        "path": path,
        "size": entry.size.to_string(),
        "mode": entry.mode,
        "permissions": permissions(entry.kind, entry.mode),
        "owner": who(entry.uid),
        "group": who(entry.gid),
        "modifiedTime": time(entry.mtime.clamp(FIRST_S, LAST_S).saturating_mul(1_000)),
    });
    if let Some(fields) = value.as_object_mut().filter(|_| is_link) {
        fields.insert("isSymlink".into(), true.into());
        let to = entry.target.as_deref().unwrap_or_default();
        let to = if to.starts_with('/') { to.to_owned() } else { format!("{}/{to}", parent(path)) };
        fields.insert("symlinkTarget".into(), to.into());
    }
    value
}

fn root() -> Entry {
    Entry {
        name: "/".into(),
        mangled: false,
        kind: NodeKind::Dir,
        size: 0,
        mode: 0o755,
        mtime: 0,
        uid: 0,
        gid: 0,
        target: None,
    }
}

/// What is at a plain path, a link at its end not followed; `None`: nothing.
pub(crate) async fn look(guest: &Guest, path: &str) -> Result<Option<(Entry, String)>, Fault> {
    if path == "/" {
        return Ok(Some((root(), path.to_owned())));
    }
    match guest.ask(StatFile { path: path.to_owned() }).await {
        Ok(entry) => Ok(Some((entry, path.to_owned()))),
        Err(error) if is_absent(&error) => Ok(None),
        Err(error) if is_through(&error) => {
            let real = followed(guest, path, false).await?;
            match guest.ask(StatFile { path: real.clone() }).await {
                Ok(entry) => Ok(Some((entry, real))),
                Err(error) if is_absent(&error) => Ok(None),
                Err(error) => Err(unavailable(&error)),
            }
        }
        Err(error) => Err(unavailable(&error)),
    }
}

/// The message of what is at a plain path.
pub(crate) async fn described(guest: &Guest, path: &str) -> ReplyResult {
    let found = look(guest, path).await?;
    let (mut entry, real) = found.ok_or_else(|| missing(path))?;
    entry.name = name(path).to_owned();
    let target = match entry.kind {
        NodeKind::Link => {
            let to = followed(guest, &real, true).await?;
            look(guest, &to).await?.map(|(entry, _)| entry.kind)
        }
        _ => None,
    };
    Ok(info(&entry, path, target))
}

pub(crate) fn missing(path: &str) -> Fault {
    Fault::missing(format!("path not found: {path}"))
}

#[cfg(test)]
mod tests {

    use super::*;

    #[test]
    fn an_entry_is_written_as_clients_read_it() {
        let file = Entry {
            name: "a".into(),
            kind: NodeKind::File,
            mode: 0o640,
            size: 7,
            uid: 1_000,
            gid: 5,
            ..root()
        };
        let value = info(&file, "/x/a", None);
        assert_eq!(value["type"], "FILE_TYPE_FILE");
        assert_eq!(value["permissions"], "-rw-r-----");
        assert_eq!((value["size"].as_str(), value["owner"].as_str()), (Some("7"), Some("user")));
        assert_eq!(value["group"], "5");
        assert_eq!(value["modifiedTime"], "1970-01-01T00:00:00.000Z");
        for (mtime, shown) in
            [(i64::MAX, "9999-12-31T23:59:59.000Z"), (i64::MIN, "0001-01-01T00:00:00.000Z")]
        {
            let value = info(&Entry { mtime, name: "a".into(), ..root() }, "/x/a", None);
            assert_eq!(value["modifiedTime"], shown);
        }
        let link = Entry { kind: NodeKind::Link, target: Some("b".into()), ..file };
        let value = info(&link, "/x/a", Some(NodeKind::Dir));
        assert_eq!(value["type"], "FILE_TYPE_DIRECTORY");
        assert_eq!(value["symlinkTarget"], "/x/b");
        assert_eq!(value["isSymlink"], true);
    }
}
