//! Files that a command writes because this very call names them. **No path that a server answers with
//! is ever opened for writing.**

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::Context;
use cofferdam_ambient::random;
use rustix::fs::{CWD, OFlags, RenameFlags, renameat_with};
use rustix::io::Errno;

/// A file to be written: new, unless `--force` replaces what is there.
#[derive(Debug)]
pub(crate) struct Target<'a> {
    pub path: &'a Path,
    pub force: bool,
}

impl<'a> Target<'a> {
    /// Looks before the work begins whether the name is free; [`Target::write`] decides.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        match fs::symlink_metadata(self.path) {
            Ok(_) if !self.force => Err(self.exists()),
            _ => Ok(()),
        }
    }

    /// Makes the file with these bytes. A file, link or device that is there is never opened: with
    /// `--force` a new file takes its name by one rename in the same directory.
    pub(crate) fn write(&self, bytes: &[u8]) -> anyhow::Result<()> {
        if self.force {
            return self.replace(bytes);
        }
        let mut file = match fresh(self.path) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => return Err(self.exists()),
            made => made.with_context(|| self.named())?,
        };
        file.write_all(bytes).with_context(|| self.named())
    }

    /// Begins a file that comes in pieces.
    pub(crate) fn begin(self) -> anyhow::Result<Pieces<'a>> {
        let path = self.draft()?;
        let file = fresh(&path).with_context(|| self.named())?;
        Ok(Pieces { target: self, path, file })
    }

    fn replace(&self, bytes: &[u8]) -> anyhow::Result<()> {
        let draft = self.draft()?;
        let written = fresh(&draft)
            .and_then(|mut file| file.write_all(bytes))
            .and_then(|()| fs::rename(&draft, self.path));
        if written.is_err() {
            let _ = fs::remove_file(&draft);
        }
        written.with_context(|| self.named())
    }

    /// A name beside the file's that nobody can have guessed.
    fn draft(&self) -> anyhow::Result<PathBuf> {
        let name = self.path.file_name().with_context(|| self.named())?;
        let mut draft = std::ffi::OsString::from(".");
        draft.push(name);
        draft.push(format!(".{}", random::secret_hex(8)));
        Ok(self.path.with_file_name(draft))
    }

    fn exists(&self) -> anyhow::Error {
        anyhow::anyhow!("{} exists: choose another name, or replace it with --force", self.named())
    }

    fn named(&self) -> String {
        self.path.display().to_string()
    }
}

/// A file that is written in pieces: it gets its name once it is whole, and is gone where it never is.
#[derive(Debug)]
pub(crate) struct Pieces<'a> {
    target: Target<'a>,
    path: PathBuf,
    file: File,
}

impl Pieces<'_> {
    pub(crate) fn write(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        self.file.write_all(bytes).with_context(|| self.target.named())
    }

    /// Gives it its name. What is there by now is replaced only with `--force`.
    pub(crate) fn commit(self) -> anyhow::Result<()> {
        let flags = match self.target.force {
            true => RenameFlags::empty(),
            false => RenameFlags::NOREPLACE,
        };
        match renameat_with(CWD, &self.path, CWD, self.target.path, flags) {
            Err(Errno::EXIST) => Err(self.target.exists()),
            renamed => renamed.with_context(|| self.target.named()),
        }
    }
}

impl Drop for Pieces<'_> {
    fn drop(&mut self) {
        // It is not there any more where it has its name.
        let _ = fs::remove_file(&self.path);
    }
}

fn fresh(path: &Path) -> std::io::Result<File> {
    OpenOptions::new()
        .write(true)
        .create_new(true)
        .custom_flags(OFlags::NOFOLLOW.bits().cast_signed())
        .open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory of this test's own.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new() -> Self {
            let dir = std::env::temp_dir().join(format!("cofferdam-out-{}", random::secret_hex(8)));
            fs::create_dir(&dir).unwrap();
            Self(dir)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0).unwrap();
        }
    }

    #[test]
    fn h2_only_a_new_file_is_written_and_a_link_is_never_followed() {
        let dir = Scratch::new();
        let (new, kept, link) = (dir.0.join("new"), dir.0.join("kept"), dir.0.join("link"));
        let target = |path, force| Target { path, force };
        target(&new, false).write(b"one").unwrap();
        assert_eq!(fs::read(&new).unwrap(), b"one");
        let again = target(&new, false).write(b"two").unwrap_err();
        assert!(again.to_string().contains("--force"), "{again}");
        assert!(target(&new, false).check().is_err() && target(&new, true).check().is_ok());
        assert_eq!(fs::read(&new).unwrap(), b"one");
        for at in [&kept, &dir.0.join("missing")] {
            let _ = fs::remove_file(&link);
            std::os::unix::fs::symlink(at, &link).unwrap();
            assert!(target(&link, false).write(b"two").is_err());
            assert!(!at.exists(), "a dangling link was followed");
        }
        fs::write(&kept, b"kept").unwrap();
        fs::remove_file(&link).unwrap();
        std::os::unix::fs::symlink(&kept, &link).unwrap();
        target(&link, true).write(b"three").unwrap();
        assert_eq!(fs::read(&kept).unwrap(), b"kept");
        assert!(fs::symlink_metadata(&link).unwrap().is_file());
        assert_eq!(fs::read(&link).unwrap(), b"three");
        let piecewise = |path, force| {
            let mut draft = target(path, force).begin().unwrap();
            draft.write(b"fo").unwrap();
            draft.write(b"ur").unwrap();
            draft
        };
        assert!(piecewise(&kept, false).commit().is_err());
        drop(piecewise(&kept, true));
        assert_eq!(fs::read(&kept).unwrap(), b"kept");
        piecewise(&kept, true).commit().unwrap();
        assert_eq!(fs::read(&kept).unwrap(), b"four");
        let left = fs::read_dir(&dir.0).unwrap().count();
        assert_eq!(left, 3, "no draft stays");
    }
}
