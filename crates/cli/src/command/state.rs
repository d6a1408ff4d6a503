//! The state directory: where the private database, the admin key and a running server's address are.

use std::cmp::Reverse;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::Context;
use cofferdam_ambient::file_lock::FileLock;
use cofferdam_contracts::canonical::digest_bytes;
use serde::{Deserialize, Serialize};

use super::exit::Misuse;
use super::local::Draft;
use super::locations::Locations;
use super::{directory_identity, local};

/// Where the server of a state directory says where it answers.
const ENDPOINT: &str = "endpoint.json";

/// The state directory of this call; made if it is not there, and refused if it is a copy of another.
pub(crate) fn dir(at: &Locations) -> anyhow::Result<PathBuf> {
    let dir = path(at)?;
    directory_identity::check(&dir)?;
    Ok(dir)
}

/// The same, whatever it is.
pub(crate) fn path(at: &Locations) -> anyhow::Result<PathBuf> {
    let dir = match &at.state {
        Some(dir) => dir.clone(),
        None => default_dir()?,
    };
    if !dir.exists() {
        fs::create_dir_all(&dir)
            .with_context(|| format!("cannot make the state directory {}", dir.display()))?;
        // Its contents have modes of their own; the database's user must be able to pass through.
        fs::set_permissions(&dir, Permissions::from_mode(0o711))?;
    }
    dir.canonicalize()
        .with_context(|| format!("cannot reach the state directory {}", dir.display()))
}

fn default_dir() -> anyhow::Result<PathBuf> {
    if rustix::process::geteuid().is_root() {
        return Ok(PathBuf::from("/var/lib/cofferdam"));
    }
    let base = cofferdam_ambient::env::var("XDG_STATE_HOME").map(PathBuf::from).or_else(|| {
        cofferdam_ambient::env::var("HOME").map(|home| Path::new(&home).join(".local/state"))
    });
    Ok(base
        .ok_or_else(|| Misuse("neither HOME nor XDG_STATE_HOME is set: give --state DIR".into()))?
        .join("cofferdam"))
}

/// A running server, as it announces itself.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Endpoint {
    /// The address for people and links elsewhere. No key is sent there on this file's word.
    pub url: String,
    pub pid: u32,
    /// Its socket in the state directory; servers before this field are not talked to.
    #[serde(default)]
    pub socket: Option<String>,
}

pub(crate) fn endpoint_read(dir: &Path) -> Option<Endpoint> {
    serde_json::from_slice(&fs::read(dir.join(ENDPOINT)).ok()?).ok()
}

pub(crate) fn endpoint_write(dir: &Path, endpoint: &Endpoint) -> anyhow::Result<()> {
    replace(&dir.join(ENDPOINT), &serde_json::to_vec(endpoint)?, 0o644)
}

/// Makes room for the announcement of another server: that of one which still answers is put aside with its socket.
///
/// # Errors
/// A directory that lost the draft.
pub(crate) fn endpoint_take(dir: &Path, draft: Draft) -> anyhow::Result<()> {
    let before = endpoint_read(dir).map(|endpoint| endpoint.pid);
    let before = before.filter(|pid| *pid != std::process::id());
    if let Some(pid) = before {
        let _ = fs::copy(dir.join(ENDPOINT), dir.join(aside(pid)));
    }
    draft.publish(dir, before)
}

/// Takes the announcement back with its socket. Where it is still this process's, the server that was met here before it, and still
/// answers, is met again.
pub(crate) fn endpoint_remove(dir: &Path) {
    let own = std::process::id();
    if endpoint_read(dir).is_none_or(|endpoint| endpoint.pid != own) {
        let _ = fs::remove_file(dir.join(aside(own)));
        local::remove_aside(dir, own);
        return;
    }
    let _ = fs::remove_file(dir.join(ENDPOINT));
    local::remove(dir);
    for pid in set_aside(dir) {
        if local::put_back(dir, pid) {
            let _ = fs::rename(dir.join(aside(pid)), dir.join(ENDPOINT));
            return;
        }
        let _ = fs::remove_file(dir.join(aside(pid)));
        local::remove_aside(dir, pid);
    }
}

fn aside(pid: u32) -> String {
    format!("{ENDPOINT}.{pid}.aside")
}

/// Servers that were put aside, the one that was met last first.
fn set_aside(dir: &Path) -> Vec<u32> {
    let mut found: Vec<(SystemTime, u32)> = fs::read_dir(dir)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let pid = name.strip_prefix(ENDPOINT)?.strip_prefix('.')?.strip_suffix(".aside")?;
            Some((entry.metadata().ok()?.modified().ok()?, pid.parse().ok()?))
        })
        .collect();
    found.sort_unstable_by_key(|found| Reverse(*found));
    found.into_iter().map(|(_, pid)| pid).collect()
}

/// The admin key; `None` where there is none.
///
/// # Errors
/// One that cannot be read, so that no other one is made in its place.
pub(crate) fn key_read(dir: &Path) -> anyhow::Result<Option<String>> {
    let path = dir.join(KEY);
    match fs::read_to_string(&path) {
        Ok(key) => Ok(Some(key.trim().to_owned()).filter(|key| !key.is_empty())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
    }
}

/// The turn of those who would make the admin key; it ends when it is dropped.
pub(crate) async fn turn(dir: &Path) -> anyhow::Result<FileLock> {
    let what = format!("cannot lock {}", dir.display());
    let held = File::open(dir).with_context(|| what.clone())?;
    let locked = tokio::task::spawn_blocking(move || FileLock::exclusive(held)).await?;
    locked.context(what)
}

/// Keeps an admin key that another one replaces, under a name of its own: which.
pub(crate) fn key_set_aside(dir: &Path, key: &str) -> anyhow::Result<String> {
    let digest = digest_bytes(key.as_bytes()).to_string();
    let name = format!("{KEY}.{}", digest.get(..8).unwrap_or(&digest));
    fs::rename(dir.join(KEY), dir.join(&name))
        .with_context(|| format!("cannot rename {KEY} in {}", dir.display()))?;
    Ok(name)
}

pub(crate) fn key_write(dir: &Path, key: &str) -> anyhow::Result<()> {
    // From now on no task of any worker of this host is given it.
    cofferdam_sandbox::mark(dir).with_context(|| format!("cannot mark {}", dir.display()))?;
    replace(&dir.join(KEY), format!("{key}\n").as_bytes(), 0o600)
}

/// The signing key of webhooks and reply links, as it stands in its file.
pub(crate) fn signing_read(dir: &Path) -> Option<String> {
    fs::read_to_string(dir.join(SIGNING)).ok()
}

/// Keeps a fresh signing key, unless another process was faster: the one that is there.
pub(crate) fn signing_keep(dir: &Path, fresh: &str) -> anyhow::Result<String> {
    let path = dir.join(SIGNING);
    let draft = path.with_extension(format!("new-{}", std::process::id()));
    replace(&draft, fresh.as_bytes(), 0o600)?;
    // A link is made only where no file is: two that start at once end up with one key.
    let linked = fs::hard_link(&draft, &path);
    fs::remove_file(&draft)?;
    match linked {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
            Err(error).with_context(|| format!("cannot write {}", path.display()))
        }
        _ => signing_read(dir).with_context(|| format!("cannot read {}", path.display())),
    }
}

pub(crate) fn signing_write(dir: &Path, key: &str) -> anyhow::Result<()> {
    replace(&dir.join(SIGNING), key.as_bytes(), 0o600)
}

const KEY: &str = "admin.key";
const SIGNING: &str = "signing.key";

/// Whole or not at all: a reader never sees half a file.
fn replace(path: &Path, bytes: &[u8], mode: u32) -> anyhow::Result<()> {
    let draft = path.with_extension(format!("new-{}", std::process::id()));
    let write = || -> std::io::Result<()> {
        let mut file =
            OpenOptions::new().write(true).create(true).truncate(true).mode(mode).open(&draft)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&draft, path)
    };
    write().with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn announce(dir: &Path, pid: u32) {
        endpoint_write(dir, &Endpoint { url: format!("http://{pid}"), pid, socket: None }).unwrap();
    }

    #[tokio::test]
    async fn a_server_that_was_met_before_is_met_again_after_a_later_one_stops() {
        let home = tempfile::tempdir().unwrap();
        let dir = home.path();
        let (own, other) = (std::process::id(), u32::MAX);
        let begun = |pid| {
            let (draft, listener) = Draft::listen(dir).unwrap();
            endpoint_take(dir, draft).unwrap();
            announce(dir, pid);
            listener
        };
        let met = || endpoint_read(dir).map(|endpoint| endpoint.pid);
        let first = begun(other);
        let second = begun(own);
        assert_eq!(met(), Some(own), "the one that began last");
        endpoint_remove(dir);
        drop(second);
        assert_eq!(met(), Some(other));
        assert!(local::find(dir).await.unwrap().is_some());
        // One that died meanwhile is not met again.
        let third = begun(own);
        drop(first);
        endpoint_remove(dir);
        drop(third);
        assert_eq!(met(), None);
        assert_eq!(fs::read_dir(dir).unwrap().count(), 0, "nothing of theirs stays");
        // Of one that stops while a later one answers, the later one stays.
        let (first, later) = (begun(own), Draft::listen(dir).unwrap());
        let _ = fs::copy(dir.join(ENDPOINT), dir.join(aside(own)));
        later.0.publish(dir, Some(own)).unwrap();
        announce(dir, other);
        endpoint_remove(dir);
        drop(first);
        assert_eq!(met(), Some(other));
        assert_eq!(fs::read_dir(dir).unwrap().count(), 2);
    }
}
