//! The files of a `copy` step: regular files below the build file's directory alone, read by descriptor.

use std::fs::File;
use std::io::Read as _;
use std::ops::ControlFlow;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use super::steps::CopyStep;
use crate::host::hostpath::{AllowedPaths, HostHandle, HostPath, Links, ListError};
use crate::images::error::{ImageError, at};
use crate::spec::input::Input;

/// Files of one `copy`, and their bytes: they pass through memory.
const MAX_FILES: usize = 20_000;
const MAX_BYTES: u64 = 512 * 1024 * 1024;
/// Entries that are looked at: as many that are not regular files would be refused at the first one.
const MAX_ENTRIES: usize = 2 * MAX_FILES;

/// The directory that `copy` steps read from.
#[derive(Debug, Clone, Copy)]
pub(crate) enum CopyRoot<'a> {
    /// Named by who builds: nothing of it lies in a state directory.
    Given(&'a Path),
    /// Made by this program for this build, in its own state directory.
    Own(&'a Path),
}

impl CopyRoot<'_> {
    fn path(&self) -> &Path {
        match self {
            Self::Given(path) | Self::Own(path) => path,
        }
    }

    /// What a step names below it.
    fn open(&self, asked: &Path) -> Result<HostHandle, ImageError> {
        let out = || {
            let why = "is missing, or leads out of the build file's directory";
            ImageError::hostile(asked, why)
        };
        let root = match self {
            Self::Given(root) => *root,
            // No tenant wrote in it: it need not be kept from a state directory.
            Self::Own(_) => return HostHandle::own(asked).map_err(at(asked)),
        };
        let text = asked.to_str();
        let text =
            text.ok_or_else(|| ImageError::hostile(asked, "has a name that is not UTF-8"))?;
        let allowed = AllowedPaths::new(&[root.to_owned()], Vec::new());
        let allowed = allowed.map_err(|(path, error)| at(&path)(error))?;
        allowed.open(&HostPath::said(text), Links::Beneath).map_err(|_| out())
    }
}

struct Copies<'a> {
    /// Where they go, inside.
    to: &'a str,
    left: u64,
    inputs: Vec<Input>,
}

/// What the step copies, in the order of the names.
pub(super) fn files(root: CopyRoot<'_>, copy: &CopyStep) -> Result<Vec<Input>, ImageError> {
    let asked = root.path().join(&copy.from);
    let opened = root.open(&asked)?;
    let to = copy.to.trim_end_matches('/');
    let mut copies = Copies { to, left: MAX_BYTES, inputs: Vec::new() };
    if !opened.is_dir() {
        let file = opened.file(Path::new("")).map_err(at(&asked))?;
        copies.take(file, "", &asked)?;
        return Ok(copies.inputs);
    }
    let mut fault = None;
    let listed = opened.entries(MAX_ENTRIES, &mut |below, is_file| {
        let path = asked.join(below);
        let taken = match (is_file, below.to_str()) {
            (false, _) => Err(ImageError::hostile(&path, "is neither a file nor a directory")),
            (true, None) => Err(ImageError::hostile(&path, "has a name that is not UTF-8")),
            (true, Some(name)) => {
                let file = opened.file(below).map_err(at(&path));
                file.and_then(|file| copies.take(file, name, &path))
            }
        };
        match taken {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => {
                fault = Some(error);
                ControlFlow::Break(())
            }
        }
    });
    match listed {
        Ok(()) => fault.map_or(Ok(copies.inputs), Err),
        Err(ListError::Many(_)) => Err(too_many()),
        Err(ListError::Deep) => Err(ImageError::hostile(&asked, "nests too deep")),
        Err(ListError::Read { path, source }) => Err(at(&asked.join(path))(source)),
    }
}

impl Copies<'_> {
    fn take(&mut self, file: File, name: &str, path: &Path) -> Result<(), ImageError> {
        let found = file.metadata().map_err(at(path))?;
        let mut bytes = Vec::new();
        file.take(self.left.saturating_add(1)).read_to_end(&mut bytes).map_err(at(path))?;
        let count = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        let what = "the bytes of a copy step";
        self.left =
            self.left.checked_sub(count).ok_or(ImageError::TooLarge { what, limit: MAX_BYTES })?;
        if self.inputs.len() >= MAX_FILES {
            return Err(too_many());
        }
        let path = match name {
            "" => self.to.to_owned(),
            name => format!("{}/{name}", self.to),
        };
        self.inputs.push(Input::Bytes { path, bytes, mode: found.permissions().mode() & 0o777 });
        Ok(())
    }
}

fn too_many() -> ImageError {
    ImageError::TooLarge { what: "the files of a copy step", limit: 20_000 }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::host::hostpath::mark;

    #[test]
    fn c1_what_this_program_made_for_a_build_is_copied_out_of_a_state_directory() {
        let state = tempfile::tempdir().unwrap();
        mark(state.path()).unwrap();
        let room = state.path().join("images/templates/x.room");
        fs::create_dir_all(room.join("local/lib")).unwrap();
        fs::write(room.join("local/lib/server.py"), "x").unwrap();
        let copy = CopyStep { from: "local".to_owned(), to: "/usr/local".to_owned() };
        let made = files(CopyRoot::Own(&room), &copy).unwrap();
        let [Input::Bytes { path, bytes, .. }] = made.as_slice() else { panic!("{made:?}") };
        assert_eq!((path.as_str(), bytes.as_slice()), ("/usr/local/lib/server.py", &b"x"[..]));
        let refused = files(CopyRoot::Given(&room), &copy).unwrap_err().to_string();
        assert!(refused.contains("leads out"), "{refused}");
        // Whatever packages wrote there: no link is followed, neither to the directory nor in it.
        std::os::unix::fs::symlink("/etc", room.join("local/etc")).unwrap();
        assert!(files(CopyRoot::Own(&room), &copy).is_err());
        std::os::unix::fs::symlink("/etc", room.join("link")).unwrap();
        let link = CopyStep { from: "link".to_owned(), ..copy };
        assert!(files(CopyRoot::Own(&room), &link).is_err());
    }
}
