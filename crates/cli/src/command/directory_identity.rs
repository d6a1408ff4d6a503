//! A state directory knows its identity: a copy of it is told apart before anything of it is used.
//!
//! ```text
//! place.json: id, path, birth of the directory (kept by mv, remounts and reboots; new in every copy), inode, device, boot,
//!             host, and locations that it had before, until the database names none of them
//!
//! missing -> written | of this very directory -> fine, brought up to date | of another -> refused
//! adopt:  of another whose original is gone -> written anew
//! ```
//! A copy holds the other's `live` link, database, keys and sessions: whoever ran it would destroy the sandboxes of
//! the original, which it takes for a dead worker's, and send its webhooks.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use anyhow::Context;
use cofferdam_ambient::random;
use serde::{Deserialize, Serialize};

use super::exit::Misuse;
use super::{local, output};

const NAME: &str = "place.json";

/// Which directory it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct DirectoryIdentity {
    /// For people who compare two of them.
    id: String,
    /// Where it was last.
    path: PathBuf,
    /// When the file system made the directory, in nanoseconds since the epoch, where it knows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    birth: Option<u64>,
    inode: u64,
    /// Means something within one boot only.
    device: u64,
    boot: String,
    /// Which host it was on last, as rows have it; records of earlier versions do not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    host: Option<String>,
    /// Where it was before, as far as rows may still say so.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    formers: Vec<FormerLocation>,
}

/// A location that a state directory had.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct FormerLocation {
    pub host: String,
    pub path: PathBuf,
}

/// Locations that are kept until rows are moved: more moves than that without a start of a worker are forgotten, the oldest first.
const MAX_FORMERS: usize = 16;

impl DirectoryIdentity {
    fn of(dir: &Path, id: String) -> io::Result<Self> {
        let found = fs::metadata(dir)?;
        let birth = found.created().ok().and_then(|at| at.duration_since(UNIX_EPOCH).ok());
        Ok(Self {
            id,
            path: dir.to_path_buf(),
            birth: birth.and_then(|at| u64::try_from(at.as_nanos()).ok()),
            inode: found.ino(),
            device: found.dev(),
            boot: fs::read_to_string("/proc/sys/kernel/random/boot_id")
                .map(|text| text.trim().to_owned())
                .unwrap_or_default(),
            host: Some(cofferdam_flows::host_id()),
            formers: Vec::new(),
        })
    }

    /// This location, with those that it had before. Pure.
    fn after(self, before: &Self) -> Self {
        let mut formers = before.formers.clone();
        if let Some(host) = before.host.as_ref().or(self.host.as_ref()) {
            formers.push(FormerLocation { host: host.clone(), path: before.path.clone() });
        }
        formers
            .retain(|former| self.host.as_ref() != Some(&former.host) || former.path != self.path);
        formers.dedup();
        let from = formers.len().saturating_sub(MAX_FORMERS);
        Self { formers: formers.split_off(from), ..self }
    }

    /// Whether both are one directory, as far as the file system can say. Pure.
    fn is(&self, other: &Self) -> bool {
        match (self.birth, other.birth) {
            (Some(one), Some(two)) => one == two,
            _ => {
                self.inode == other.inode
                    && (self.boot != other.boot || self.device == other.device)
            }
        }
    }

    /// Whether both were looked at where they are now, and are two. Pure.
    fn is_beside(&self, other: &Self) -> bool {
        (self.device, self.inode) != (other.device, other.inode)
    }
}

/// What a directory with a record is. Pure.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    /// What it says.
    Itself,
    /// A copy; the original was at the recorded path.
    Copy,
}

/// `there` is what lies at the recorded path now. Pure.
fn judge(
    recorded: &DirectoryIdentity,
    here: &DirectoryIdentity,
    there: Option<&DirectoryIdentity>,
) -> Verdict {
    // A snapshot of a file system keeps even the birth: two that both are it are one and its copy.
    let twin = there.is_some_and(|there| there.is_beside(here) && there.is(recorded));
    match recorded.is(here) && !twin {
        true => Verdict::Itself,
        false => Verdict::Copy,
    }
}

/// Lets nobody use a copy; a directory that has no record yet gets one.
///
/// # Errors
/// A copy, by what to do; a record that cannot be read.
pub(crate) fn check(dir: &Path) -> anyhow::Result<()> {
    let Some(recorded) = read(dir)? else {
        return match keep(dir) {
            // Somebody who may not write here can do no harm here either.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(()),
            other => other.with_context(|| format!("cannot write {NAME} in {}", dir.display())),
        };
    };
    let here = DirectoryIdentity::of(dir, recorded.id.clone())?.after(&recorded);
    match judge(&recorded, &here, at(&recorded).as_ref()) {
        Verdict::Copy => Err(Misuse(refusal(dir, &recorded)).into()),
        Verdict::Itself if here == recorded => Ok(()),
        // It was moved, or the host was started again. The record is right without that, too.
        Verdict::Itself => {
            let _ = replace(dir, &here);
            Ok(())
        }
    }
}

/// What the directory is called, wherever it was moved; `None` where it has no record.
pub(crate) fn id(dir: &Path) -> anyhow::Result<Option<String>> {
    Ok(read(dir)?.map(|recorded| recorded.id))
}

/// Locations that it had before, which rows may still name.
pub(crate) fn formers(dir: &Path) -> anyhow::Result<Vec<FormerLocation>> {
    Ok(read(dir)?.map(|recorded| recorded.formers).unwrap_or_default())
}

/// Forgets them: rows name this location now.
pub(crate) fn settled(dir: &Path) -> anyhow::Result<()> {
    match read(dir)? {
        Some(recorded) if !recorded.formers.is_empty() => {
            replace(dir, &DirectoryIdentity { formers: Vec::new(), ..recorded })
                .with_context(|| format!("cannot write {NAME} in {}", dir.display()))
        }
        _ => Ok(()),
    }
}

fn refusal(dir: &Path, recorded: &DirectoryIdentity) -> String {
    format!(
        "the state directory {dir} is a copy of {original} ({id}): nothing of it was used, since its database, sandboxes \
         and webhooks are the original's. If the original is gone and this one takes its place: cofferdam adopt --state \
         {dir}. To begin anew: give another --state",
        dir = dir.display(),
        original = recorded.path.display(),
        id = recorded.id,
    )
}

/// `adopt`: a directory that was restored or moved takes the place of its original, which must be gone.
pub(crate) fn adopt(dir: &Path) -> anyhow::Result<()> {
    let Some(recorded) = read(dir)? else {
        return check(dir);
    };
    let here = DirectoryIdentity::of(dir, recorded.id.clone())?.after(&recorded);
    let there = at(&recorded);
    if judge(&recorded, &here, there.as_ref()) == Verdict::Itself {
        output::note("the state directory is not a copy; nothing to do");
        return Ok(());
    }
    if let Some(why) = lives(dir, &recorded, &here, there.as_ref()) {
        return Err(Misuse(format!("{} was not adopted: {why}", dir.display())).into());
    }
    // What the original had in memory, and where it answered, is not this one's.
    for name in ["live", "endpoint.json", local::NAME] {
        match fs::remove_file(dir.join(name)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(error)
                    .with_context(|| format!("cannot remove {name} in {}", dir.display()));
            }
            _ => {}
        }
    }
    replace(dir, &here).with_context(|| format!("cannot write {NAME} in {}", dir.display()))?;
    output::line(&format!("{} replaces {}", dir.display(), recorded.path.display()));
    Ok(())
}

/// What says that the original is still there.
fn lives(
    dir: &Path,
    recorded: &DirectoryIdentity,
    here: &DirectoryIdentity,
    there: Option<&DirectoryIdentity>,
) -> Option<String> {
    if there.is_some_and(|there| there.is_beside(here) && there.is(recorded)) {
        let path = recorded.path.display();
        return Some(format!("the original is at {path}; use that, or remove it first"));
    }
    if let Some((pid, data)) = database_elsewhere(dir) {
        let data = data.display();
        return Some(format!(
            "the original's database runs as process {pid} in {data}: stop its server first"
        ));
    }
    let live = fs::read_link(dir.join("live")).ok()?;
    let holds = |name: &str| match fs::read_dir(live.join(name)) {
        Ok(mut entries) => entries.next().is_some(),
        Err(error) => error.kind() != io::ErrorKind::NotFound,
    };
    ["sandboxes", "run"].into_iter().any(holds).then(|| {
        let live = live.display();
        format!("sandboxes of the original are in {live}: stop its server first, or remove that directory if it is dead")
    })
}

/// The server whose pid file was copied along, where it runs in another directory.
fn database_elsewhere(dir: &Path) -> Option<(i32, PathBuf)> {
    let ours = dir.join("database/data");
    let text = fs::read_to_string(ours.join("postmaster.pid")).ok()?;
    let pid: i32 = text.lines().next()?.trim().parse().ok()?;
    let named = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    if !named.starts_with("postgres") {
        return None;
    }
    let cwd = PathBuf::from(format!("/proc/{pid}/cwd"));
    let is_ours = matches!((fs::metadata(&cwd), fs::metadata(&ours)),
        (Ok(its), Ok(ours)) if (its.dev(), its.ino()) == (ours.dev(), ours.ino()));
    (!is_ours).then(|| (pid, fs::read_link(&cwd).unwrap_or(cwd)))
}

/// What lies at the recorded path now.
fn at(recorded: &DirectoryIdentity) -> Option<DirectoryIdentity> {
    DirectoryIdentity::of(&recorded.path, String::new()).ok()
}

fn read(dir: &Path) -> anyhow::Result<Option<DirectoryIdentity>> {
    let path = dir.join(NAME);
    match fs::read(&path) {
        Ok(bytes) => serde_json::from_slice(&bytes).map(Some).with_context(|| {
            format!("{} cannot be read: if it was damaged, remove it", path.display())
        }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
    }
}

/// Writes the first record: of two that start at once both keep the same one.
fn keep(dir: &Path) -> io::Result<()> {
    let draft = draft(dir, &DirectoryIdentity::of(dir, random::secret_hex(8))?)?;
    let linked = fs::hard_link(&draft, dir.join(NAME));
    fs::remove_file(&draft)?;
    match linked {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

fn replace(dir: &Path, place: &DirectoryIdentity) -> io::Result<()> {
    fs::rename(draft(dir, place)?, dir.join(NAME))
}

fn draft(dir: &Path, place: &DirectoryIdentity) -> io::Result<PathBuf> {
    let draft = dir.join(format!("{NAME}.{}-{}", std::process::id(), random::secret_hex(4)));
    let mut file = File::create_new(&draft)?;
    file.write_all(&serde_json::to_vec(place)?)?;
    file.sync_all()?;
    Ok(draft)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(birth: Option<u64>, inode: u64, device: u64, boot: &str) -> DirectoryIdentity {
        let path = PathBuf::from("/p");
        let (host, formers) = (None, Vec::new());
        DirectoryIdentity {
            id: "i".into(),
            path,
            birth,
            inode,
            device,
            boot: boot.into(),
            host,
            formers,
        }
    }

    #[test]
    fn former_places_are_kept_until_rows_name_none_of_them() {
        let at = |path: &str, host: Option<&str>| DirectoryIdentity {
            path: path.into(),
            host: host.map(Into::into),
            ..place(Some(7), 1, 1, "a")
        };
        let said = |of: &DirectoryIdentity| {
            let each = of.formers.iter().map(|f| format!("{}:{}", f.host, f.path.display()));
            each.collect::<Vec<_>>().join(" ")
        };
        let one = at("/a", Some("h")).after(&at("/a", Some("h")));
        assert_eq!(said(&one), "", "nothing moved");
        let old = at("/b", Some("h")).after(&at("/a", None));
        assert_eq!(said(&old), "h:/a", "a record of an earlier version is of this host");
        let two = at("/c", Some("i")).after(&old);
        assert_eq!(said(&two), "h:/a h:/b");
        assert_eq!(said(&at("/a", Some("h")).after(&two)), "h:/b i:/c", "it is back");
        let many = (0..40).fold(two, |before, n| at(&format!("/{n}"), Some("h")).after(&before));
        assert_eq!(many.formers.len(), MAX_FORMERS);
    }

    #[test]
    fn e4_what_is_moved_remounted_or_rebooted_is_itself_and_what_is_copied_is_not() {
        let recorded = place(Some(7), 1, 10, "a");
        for here in [recorded.clone(), place(Some(7), 1, 11, "b"), place(Some(7), 2, 12, "a")] {
            assert_eq!(judge(&recorded, &here, None), Verdict::Itself, "{here:?}");
        }
        let copy = place(Some(8), 5, 10, "a");
        assert_eq!(judge(&recorded, &copy, None), Verdict::Copy);
        assert_eq!(judge(&recorded, &copy, Some(&recorded)), Verdict::Copy);
        // The recorded path leads to the very directory: nothing moved, or it is mounted twice.
        assert_eq!(judge(&recorded, &recorded, Some(&recorded)), Verdict::Itself);
        // A snapshot beside its original.
        let snapshot = place(Some(7), 1, 20, "a");
        assert_eq!(judge(&recorded, &snapshot, Some(&recorded)), Verdict::Copy);
        assert_eq!(judge(&recorded, &snapshot, Some(&place(Some(9), 3, 10, "a"))), Verdict::Itself);
    }

    #[test]
    fn e4_where_the_file_system_knows_no_birth_the_inode_decides() {
        let recorded = place(None, 1, 10, "a");
        for (here, verdict) in [
            (place(None, 1, 10, "a"), Verdict::Itself),
            (place(None, 1, 99, "b"), Verdict::Itself),
            (place(None, 1, 99, "a"), Verdict::Copy),
            (place(None, 2, 10, "b"), Verdict::Copy),
        ] {
            assert_eq!(judge(&recorded, &here, None), verdict, "{here:?}");
        }
    }
}
