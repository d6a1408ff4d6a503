//! A directory of this host that gets a run's files. **Each name is resolved below it, and through no link**
//! (`openat2` with `RESOLVE_BENEATH` and `RESOLVE_NO_SYMLINKS`); a file has its name once it is whole.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use anyhow::Context;
use cofferdam_ambient::random;
use rustix::fs::{
    AtFlags, CWD, Mode, OFlags, RenameFlags, ResolveFlags, mkdirat, openat, openat2, renameat_with,
    symlinkat, unlinkat,
};
use rustix::io::Errno;

use super::destination::{Destination, DestinationKind};

/// Names that are whole are found by no link and lie below.
const RESOLVE: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS);
/// A handle, whatever it is of.
const HANDLE: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// A directory that is written to.
#[derive(Debug)]
pub(crate) struct OutputDirectory {
    at: PathBuf,
    root: OwnedFd,
    /// Replaces what is there.
    force: bool,
    /// The directory of the file before: many files are in one.
    last: Option<Parent>,
}

/// A directory below, by its path.
#[derive(Debug)]
struct Parent {
    path: PathBuf,
    dir: OwnedFd,
}

impl OutputDirectory {
    /// Opens a directory, which is made where it is missing.
    pub(crate) fn open(at: &Path, force: bool) -> anyhow::Result<Self> {
        let named = || at.display().to_string();
        fs::create_dir_all(at).with_context(named)?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = openat(CWD, at, flags, Mode::empty()).with_context(named)?;
        Ok(Self { at: at.to_owned(), root, force, last: None })
    }

    /// Looks before anything is written whether the names are free.
    pub(crate) fn check(&self, all: &[Destination]) -> anyhow::Result<()> {
        if self.force {
            return Ok(());
        }
        for one in all {
            match openat2(&self.root, &one.path, HANDLE, Mode::empty(), RESOLVE) {
                Err(Errno::NOENT) => {}
                Ok(found) if one.kind == DestinationKind::Directory => {
                    let found = File::from(found);
                    if !found.metadata().is_ok_and(|found| found.is_dir()) {
                        return Err(self.exists(&one.path));
                    }
                }
                Ok(_) | Err(Errno::LOOP | Errno::NOTDIR) => return Err(self.exists(&one.path)),
                Err(errno) => return Err(errno).with_context(|| self.named(&one.path)),
            }
        }
        Ok(())
    }

    /// Begins a file.
    pub(crate) fn begin(
        &mut self,
        path: &Path,
        executable: bool,
    ) -> anyhow::Result<PartialFile<'_>> {
        let draft = draft();
        let mode = Mode::from(if executable { 0o755 } else { 0o644 });
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let dir = self.parent(path)?;
        let file = openat2(dir, &draft, flags, mode, RESOLVE)
            .with_context(|| path.display().to_string())?;
        Ok(PartialFile {
            directory: self,
            path: path.to_owned(),
            draft,
            file: File::from(file),
            is_named: false,
        })
    }

    /// Makes a link or an empty directory.
    pub(crate) fn make(&mut self, one: &Destination) -> anyhow::Result<()> {
        let path = &one.path;
        let name = path.file_name().unwrap_or_default();
        match &one.kind {
            DestinationKind::Link { target } => {
                let draft = draft();
                let dir = self.parent(path)?;
                symlinkat(target, dir, &draft).with_context(|| path.display().to_string())?;
                let renamed = self.rename(path, &draft);
                if renamed.is_err()
                    && let Some(parent) = &self.last
                {
                    let _ = unlinkat(&parent.dir, &draft, AtFlags::empty());
                }
                renamed
            }
            DestinationKind::Directory => {
                let dir = self.parent(path)?;
                step(dir, name).map(drop).with_context(|| path.display().to_string())
            }
            DestinationKind::File { .. } | DestinationKind::OutwardLink => Ok(()),
        }
    }

    /// The directory of a path below, which is made where it is missing.
    fn parent(&mut self, path: &Path) -> anyhow::Result<&OwnedFd> {
        let above = path.parent().unwrap_or(Path::new(""));
        if self.last.as_ref().is_none_or(|last| last.path != above) {
            let mut dir = self.root.try_clone().with_context(|| self.named(above))?;
            for name in above {
                dir = step(&dir, name).with_context(|| self.named(above))?;
            }
            self.last = Some(Parent { path: above.to_owned(), dir });
        }
        self.last.as_ref().map(|last| &last.dir).context("a directory was not opened")
    }

    /// Gives a draft its name.
    fn rename(&self, path: &Path, draft: &str) -> anyhow::Result<()> {
        let name = path.file_name().unwrap_or_default();
        let parent = self.last.as_ref().context("a directory was not opened")?;
        let flags = if self.force { RenameFlags::empty() } else { RenameFlags::NOREPLACE };
        match renameat_with(&parent.dir, draft, &parent.dir, name, flags) {
            Err(Errno::EXIST) => Err(self.exists(path)),
            renamed => renamed.with_context(|| self.named(path)),
        }
    }

    fn exists(&self, path: &Path) -> anyhow::Error {
        let named = self.named(path);
        anyhow::anyhow!(
            "{named} exists: choose another directory with -o, or replace it with --force"
        )
    }

    fn named(&self, path: &Path) -> String {
        self.at.join(path).display().to_string()
    }
}

/// A directory in a directory, made where it is missing. A link is none.
fn step(dir: &OwnedFd, name: &OsStr) -> Result<OwnedFd, Errno> {
    match mkdirat(dir, name, Mode::from(0o755)) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(errno) => return Err(errno),
    }
    openat2(dir, name, HANDLE | OFlags::DIRECTORY, Mode::empty(), RESOLVE)
}

/// A name that nobody can have guessed, and that is short beside any other.
fn draft() -> String {
    format!(".cofferdam-{}.part", random::secret_hex(8))
}

/// A file that is being written: gone where it never gets its name.
#[derive(Debug)]
pub(crate) struct PartialFile<'a> {
    directory: &'a OutputDirectory,
    path: PathBuf,
    draft: String,
    file: File,
    is_named: bool,
}

impl PartialFile<'_> {
    pub(crate) fn write(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        self.file.write_all(bytes).with_context(|| self.directory.named(&self.path))
    }

    /// Gives it its name.
    pub(crate) fn commit(mut self) -> anyhow::Result<()> {
        self.directory.rename(&self.path, &self.draft)?;
        self.is_named = true;
        Ok(())
    }
}

impl Drop for PartialFile<'_> {
    fn drop(&mut self) {
        if let (false, Some(parent)) = (self.is_named, &self.directory.last) {
            let _ = unlinkat(&parent.dir, &self.draft, AtFlags::empty());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn at(path: &str, kind: DestinationKind) -> Destination {
        Destination { path: path.into(), kind }
    }

    fn plain(path: &str) -> Destination {
        at(path, DestinationKind::File { executable: false })
    }

    fn written(dir: &Path, path: &str, force: bool) -> anyhow::Result<()> {
        let mut directory = OutputDirectory::open(dir, force)?;
        let mut file = directory.begin(Path::new(path), path.ends_with(".sh"))?;
        file.write(b"new")?;
        file.commit()
    }

    #[test]
    fn files_links_and_directories_are_made_with_their_modes() {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("not/yet");
        written(&out, "a/b/run.sh", false).unwrap();
        written(&out, "a/plain", false).unwrap();
        let mut directory = OutputDirectory::open(&out, false).unwrap();
        let target = "b/run.sh".into();
        directory.make(&at("a/link", DestinationKind::Link { target })).unwrap();
        directory.make(&at("a/empty", DestinationKind::Directory)).unwrap();
        let mode = |name: &str| fs::metadata(out.join(name)).unwrap().permissions().mode() & 0o111;
        assert!(mode("a/b/run.sh") & 0o100 != 0 && mode("a/plain") == 0);
        assert_eq!(fs::read_link(out.join("a/link")).unwrap(), Path::new("b/run.sh"));
        assert!(fs::read_dir(out.join("a/empty")).unwrap().next().is_none());
    }

    #[test]
    fn what_is_there_is_replaced_only_by_force_and_a_link_is_never_followed() {
        let dir = tempfile::tempdir().unwrap();
        let (out, other) = (dir.path().join("out"), dir.path().join("other"));
        for path in [&out, &other] {
            fs::create_dir(path).unwrap();
        }
        fs::write(out.join("a"), "old").unwrap();
        fs::write(other.join("kept"), "kept").unwrap();
        symlink(&other, out.join("link")).unwrap();
        symlink(other.join("kept"), out.join("file")).unwrap();
        let directory = OutputDirectory::open(&out, false).unwrap();
        for taken in ["a", "a/below", "link/new", "file"] {
            let error = directory.check(&[plain("free"), plain(taken)]).unwrap_err();
            assert!(error.to_string().contains("--force"), "{taken}: {error}");
        }
        assert!(directory.check(&[plain("free"), plain("free/below")]).is_ok());
        assert!(written(&out, "a", false).is_err());
        written(&out, "a", true).unwrap();
        assert_eq!(fs::read(out.join("a")).unwrap(), b"new");
        // A link on the way is refused even by force; one in the place of a file is replaced itself.
        assert!(written(&out, "link/new", true).is_err());
        written(&out, "file", true).unwrap();
        assert!(fs::symlink_metadata(out.join("file")).unwrap().is_file());
        assert_eq!(fs::read(other.join("kept")).unwrap(), b"kept");
        assert_eq!(fs::read_dir(&other).unwrap().count(), 1);
    }

    #[test]
    fn a_file_that_never_is_whole_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let mut directory = OutputDirectory::open(dir.path(), false).unwrap();
        let mut file = directory.begin(Path::new("a"), false).unwrap();
        file.write(b"half").unwrap();
        assert!(!dir.path().join("a").exists());
        drop(file);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
