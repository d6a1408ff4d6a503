//! From `envRef: image:NAME` to the directory, environment and user that a plan needs.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use cofferdam_guest::wire::User;
use rustix::fs::{FlockOperation, Mode, OFlags, ResolveFlags, flock, openat2};

use super::chain::{chains, empty};
use super::error::{ImageError, at};
use super::manifest::Settings;
use super::name::{ImageRef, text_of};
use super::store::Images;
use crate::host::hostpath::Place;

/// How an `envRef` names an image.
pub(crate) const SCHEME: &str = "image:";
/// A user database of a real system has some KiB.
const MAX_DATABASE: u64 = 1024 * 1024;

/// An image, resolved against this host: nothing about it changes any more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageRoot {
    /// `image:NAME@sha256:HEX`, for the record.
    pub pinned: String,
    /// Lower directory.
    pub root: PathBuf,
    /// The image's environment.
    pub env: BTreeMap<String, String>,
    /// The image's working directory.
    pub workdir: Option<String>,
    /// The image's user, where it is not root.
    pub user: Option<User>,
}

impl Images {
    /// Finds an image by what follows `image:`.
    pub fn resolve(&self, text: &str) -> Result<ImageRoot, ImageError> {
        let named = self.named(&ImageRef::parse(text)?)?;
        let (manifest, config) = self.image(&named.manifest)?;
        let diff_ids = config.diff_ids(manifest.layers.len())?;
        let root = self.root_path(&chains(&diff_ids).pop().unwrap_or_else(empty));
        if !root.is_dir() {
            return Err(ImageError::Unknown(named.name));
        }
        let pinned = format!("{SCHEME}{}@{}", named.name, text_of(&named.manifest));
        ImageRoot::new(pinned, root, &config.config)
    }
}

impl ImageRoot {
    pub(crate) fn new(
        pinned: String,
        root: PathBuf,
        settings: &Settings,
    ) -> Result<Self, ImageError> {
        let mut env = settings.environment();
        let (user, home) = user(&root, &settings.user)?;
        if let Some(home) = home {
            env.entry("HOME".to_owned()).or_insert(home);
        }
        let workdir =
            Some(settings.working_dir.clone()).filter(|dir| !matches!(dir.as_str(), "" | "/"));
        Ok(Self { pinned, root, env, workdir, user })
    }
}

/// A root file system in use: it is not taken away while this lives, whichever process asks.
#[derive(Debug)]
pub(crate) struct RootHold(#[expect(dead_code, reason = "its lock ends with it")] File);

/// Holds a base that is an image's root; `None` for every other base.
pub(crate) fn hold(state: &Path, base: &Place) -> io::Result<Option<RootHold>> {
    let Place::Ours(base) = base else { return Ok(None) };
    if !base.starts_with(state.join("images")) {
        return Ok(None);
    }
    let file = File::open(base)?;
    flock(&file, FlockOperation::LockShared)?;
    // It may have been swept away between the plan and the lock.
    let (ours, named) = (file.metadata()?, fs::symlink_metadata(base)?);
    match (ours.dev(), ours.ino()) == (named.dev(), named.ino()) {
        true => Ok(Some(RootHold(file))),
        false => Err(io::Error::new(io::ErrorKind::NotFound, "the image was removed meanwhile")),
    }
}

/// Reads `USER`: a name or a number, and after a colon a group. Root is `None`: it is what a task is
/// anyway. With it, the home directory of a user who has one.
fn user(root: &Path, text: &str) -> Result<(Option<User>, Option<String>), ImageError> {
    let (name, group) = text.split_once(':').map_or((text, None), |(n, g)| (n, Some(g)));
    if name.is_empty() {
        return Ok((None, None));
    }
    let people = database(root, "etc/passwd")?;
    let found = people.iter().find(|row| {
        row.first().is_some_and(|n| n == name) || row.get(2).is_some_and(|n| n == name)
    });
    let number = |column: usize| found.and_then(|row| row.get(column)?.parse::<u32>().ok());
    let unknown = |what: &str, who: &str| {
        ImageError::malformed(
            "the configuration",
            format!("its {what} {who:?} is not in the image"),
        )
    };
    let uid = name.parse().ok().or_else(|| number(2)).ok_or_else(|| unknown("user", name))?;
    let gid = match group {
        None => number(3).unwrap_or(0),
        Some(group) => {
            let by_name = || -> Result<Option<u32>, ImageError> {
                let groups = database(root, "etc/group")?;
                let found = groups.iter().find(|row| row.first().is_some_and(|n| n == group));
                Ok(found.and_then(|row| row.get(2)?.parse().ok()))
            };
            match group.parse() {
                Ok(gid) => gid,
                Err(_) => by_name()?.ok_or_else(|| unknown("group", group))?,
            }
        }
    };
    let home = found.and_then(|row| row.get(5).cloned()).filter(|home| home.starts_with('/'));
    Ok(((uid, gid) != (0, 0))
        .then_some(User { uid, gid })
        .map_or((None, home.clone()), |user| (Some(user), home.clone())))
}

/// The rows of a file of the image, never one of the host: links are followed within the root.
fn database(root: &Path, name: &str) -> Result<Vec<Vec<String>>, ImageError> {
    let dir = File::open(root).map_err(at(root))?;
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    let file = match openat2(&dir, name, flags, Mode::empty(), resolve) {
        Ok(file) => File::from(file),
        Err(_) => return Ok(Vec::new()),
    };
    let mut bytes = Vec::new();
    file.take(MAX_DATABASE).read_to_end(&mut bytes).map_err(at(&root.join(name)))?;
    let text = String::from_utf8_lossy(&bytes);
    Ok(text.lines().map(|line| line.split(':').map(str::to_owned).collect()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_looked_up_in_the_image_and_nowhere_else() {
        let root = tempfile::tempdir().unwrap();
        let etc = root.path().join("etc");
        fs::create_dir(&etc).unwrap();
        fs::write(
            etc.join("passwd"),
            "root:x:0:0::/root:/bin/sh\napp:x:1001:1002::/srv/app:/bin/sh\n",
        )
        .unwrap();
        fs::write(etc.join("group"), "staff:x:50:\n").unwrap();
        let of = |text: &str| user(root.path(), text).map_err(|error| error.to_string());
        assert_eq!(of("").unwrap(), (None, None));
        assert_eq!(of("root").unwrap().0, None);
        assert_eq!(
            of("app").unwrap(),
            (Some(User { uid: 1001, gid: 1002 }), Some("/srv/app".into()))
        );
        assert_eq!(of("app:staff").unwrap().0, Some(User { uid: 1001, gid: 50 }));
        assert_eq!(of("7:8").unwrap().0, Some(User { uid: 7, gid: 8 }));
        assert!(of("nobody-here").unwrap_err().contains("nobody-here"));
        // A link of the image leads into the image: the host has a user `daemon`.
        fs::remove_file(etc.join("passwd")).unwrap();
        std::os::unix::fs::symlink("/../../etc/passwd", etc.join("passwd")).unwrap();
        assert!(of("daemon").is_err());
    }
}
